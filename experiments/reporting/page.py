"""One HTML file that needs nothing else: no network, no font, no script from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

from experiments.pictures.style import PALETTE, mixed_with_white
from experiments.reporting.tables import Table

MOST_PICTURES = 40_000_000  # bytes of PNGs in one page
IN_THE_DARK = {**{own: mixed_with_white(own, 0.3) for own in PALETTE}, "#ffffff": "#0d1117"}
LONG = 12  # headings, beyond which the contents are folded


class Figure(NamedTuple):
    """One figure; `title` stands above it, `note` below."""

    title: str
    drawn: Any  # plotly's
    note: str = ""


class Page:
    """Sections of a page, in the order in which they are added; every text is escaped here."""

    def __init__(self, title: str, about: str) -> None:
        self.title, self.about = title, about
        self.figures = self.tables = 0  # how many there are
        self._headings: list[tuple[int, str, str]] = []  # level, anchor, title
        self._body: list[str] = []
        self._room = MOST_PICTURES

    def heading(self, title: str, anchor: str, level: int = 2) -> None:
        """A chapter (2) or a section (3); sections stand in the contents."""
        self._headings.append((level, anchor, title))
        self._body.append(f'<h{level} id="{escape(anchor)}">{escape(title)}</h{level}>')

    def text(self, text: str) -> None:
        if text:
            self._body.append(f'<p class="note">{escape(text)}</p>')

    def table(self, table: Table, anchors: Sequence[str] = (), *, wide: bool = False) -> None:
        """Its numbers are links to the anchor of their row; `wide` where cells hold sentences."""
        self.tables += 1
        head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
        rows = []
        for number, (name, *cells) in enumerate(table.rows):
            row = f'<tr><th scope="row" title="{escape(name)}">{escape(name)}</th>'
            for cell in cells:
                text = escape(cell)
                if anchors:
                    text = f'<a href="#{escape(anchors[number])}">{text}</a>'
                row += f"<td>{text}</td>"
            rows.append(f"{row}</tr>")
        self._body.append(
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
            f"<table{' class=text' if wide else ''}><thead><tr>{head}</tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table></div>"
        )

    def figure(self, figure: Figure | None) -> None:
        if figure is None:
            return
        self.figures += 1
        name = f"figure-{self.figures}"
        title = f"<figcaption><b>{escape(figure.title)}</b></figcaption>" if figure.title else ""
        note = f"<figcaption>{escape(figure.note)}</figcaption>" if figure.note else ""
        self._body.append(
            f'<figure>{title}<div class="plot" id="{name}" role="img" '
            f'aria-label="{escape(figure.title or self._headings[-1][2])}" '
            f'style="height:{figure.drawn.layout.height}px"></div>{note}'
            f'<script type="application/json" id="{name}-data">'
            f"{script_json(json.loads(figure.drawn.to_json()))}</script></figure>"
        )

    @contextmanager
    def run(self, anchor: str, title: str) -> Iterator[None]:
        """The section of a run."""
        self._headings.append((3, anchor, title))
        self._body.append(f'<section class="run" id="{escape(anchor)}"><h3>{escape(title)}</h3>')
        yield
        self._body.append("</section>")

    @contextmanager
    def folded(self, summary: str) -> Iterator[None]:
        """What is added meanwhile is closed at first."""
        self._body.append(f"<details><summary>{escape(summary)}</summary>")
        yield
        self._body.append("</details>")

    def command(self, label: str, command: str) -> None:
        self._body.append(
            f'<div class="facts">{escape(label)}</div>'
            f'<pre class="command"><code>{escape(command)}</code></pre>'
        )

    def long_text(self, summary: str, text: str) -> None:
        """Closed at first."""
        with self.folded(summary):
            self._body.append(f"<pre>{escape(text)}</pre>")

    def pictures(self, summary: str, pictures: Mapping[str, bytes]) -> None:
        """PNGs, closed at first, as long as there is room."""
        shown = []
        for name, data in pictures.items():
            if len(data) <= self._room:
                self._room -= len(data)
                shown.append(
                    f'<figure><img alt="{escape(name)}" loading="lazy" '
                    f'src="data:image/png;base64,{base64.b64encode(data).decode()}">'
                    f"<figcaption>{escape(name)}</figcaption></figure>"
                )
        if shown:
            with self.folded(summary):
                self._body += shown
        if left_out := len(pictures) - len(shown):
            self.text(f"{left_out} {summary} are left out: the report is full.")

    def html(self, provenance: Mapping[str, object]) -> str:
        """The whole file; its policy has a browser run its two scripts and no other."""
        library = plotly_js() if self.figures else "const Plotly = {};"
        own = files(__package__)
        script = own.joinpath("page.js").read_text(encoding="utf-8")
        digests = (hashlib.sha256(text.encode()).digest() for text in (library, script))
        items = "".join(
            f'<li><a href="#{escape(anchor)}">{escape(title)}</a></li>'
            for level, anchor, title in self._headings
            if level == 3
        )
        contents = f"<ul>{items}</ul>"
        if items and len(self._headings) > LONG:
            contents = f"<details><summary>Contents</summary>{contents}</details>"
        return Template(own.joinpath("page.html").read_text(encoding="utf-8")).substitute(
            hashes=" ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests),
            title=escape(self.title),
            about=escape(self.about),
            provenance=script_json(provenance),
            lighter=script_json(IN_THE_DARK),
            contents=contents,
            body="\n".join(self._body),
            library=library,
            script=script,
        )


def script_json(document: object) -> str:
    """JSON that ends no script element, whatever texts are in it."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def plotly_js() -> str:
    """The library that draws, as it is installed."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
