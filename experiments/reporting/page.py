"""One HTML file that needs nothing else: no network, no font, no script from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from experiments.reporting.figures import IN_THE_DARK, Figure
from experiments.reporting.sheets import REFERENCE
from experiments.run.tables import Table

STYLE = """
:root{color-scheme:light;--ink:#1b1f24;--muted:#57606a;--grid:#e1e4e8;--page:#ffffff;--card:#f6f8fa;--link:#0b5cad}
@media(prefers-color-scheme:dark){:root:not([data-theme=light]){color-scheme:dark;--ink:#e6edf3;
--muted:#9aa4af;--grid:#30363d;--page:#0d1117;--card:#161b22;--link:#6cb6ff}}
:root[data-theme=dark]{color-scheme:dark;--ink:#e6edf3;--muted:#9aa4af;--grid:#30363d;
--page:#0d1117;--card:#161b22;--link:#6cb6ff}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0 auto;max-width:1180px;padding:16px;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif}
h1{font-size:1.6rem;line-height:1.25;margin:.2em 0}
h2{font-size:1.3rem;margin:2em 0 .4em;border-bottom:1px solid var(--grid);padding-bottom:.2em}
h3{font-size:1.08rem;margin:1.6em 0 .3em;overflow-wrap:anywhere}
a{color:var(--link);text-decoration:none}a:hover,a:focus{text-decoration:underline}
header{display:flex;gap:12px;align-items:flex-start;justify-content:space-between}
button{font:inherit;font-size:.9rem;color:var(--ink);background:var(--card);cursor:pointer;
border:1px solid var(--grid);border-radius:6px;padding:4px 12px;white-space:nowrap}
nav ul{columns:20rem;padding-left:1.2em;margin:.4em 0}
nav li{overflow-wrap:anywhere}
p.note,figcaption,.facts{color:var(--muted);font-size:.92rem;overflow-wrap:anywhere}
.scroll{overflow-x:auto;border:1px solid var(--grid);border-radius:6px;margin:.6em 0}
table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}
th,td{padding:6px 12px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}
th:first-child{text-align:left;position:sticky;left:0;background:var(--page);max-width:60vw;
overflow:hidden;text-overflow:ellipsis}
thead th,thead th:first-child{background:var(--card);font-weight:600}
tbody th{font-weight:400}tbody tr:last-child>*{border-bottom:0}
table.text th,table.text td{white-space:normal;text-align:left;vertical-align:top;min-width:11rem;
overflow-wrap:break-word}
table.text th:first-child{min-width:9rem;max-width:40vw}
td a{color:inherit}td.ref a{color:var(--link)}
figure{margin:.8em 0 1.4em}
.plot{width:100%;min-width:0}
pre{overflow-x:auto;background:var(--card);border:1px solid var(--grid);border-radius:6px;
padding:8px 12px;font-size:.85rem;margin:.4em 0}
pre.command{white-space:pre-wrap;overflow-wrap:anywhere}
details{margin:.5em 0}summary{cursor:pointer;color:var(--muted);font-size:.92rem}
section.run{border-left:3px solid var(--grid);padding-left:14px;margin:1.6em 0}
section.run:target{border-color:var(--link)}
img{max-width:100%;height:auto;background:#fff;border-radius:4px}
@media print{button{display:none}details>*{display:block}}
"""

SCRIPT = """
(() => {
  const lighter = JSON.parse(document.getElementById('lighter').textContent);
  const root = document.documentElement, names = ['ink', 'grid', 'page'];
  const button = document.getElementById('theme');
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const touch = matchMedia('(hover: none)').matches;
  const isDark = () => root.dataset.theme ? root.dataset.theme === 'dark' : dark.matches;
  const colours = () => {
    const style = getComputedStyle(root);
    const own = Object.fromEntries(
      names.map(name => ['@' + name, style.getPropertyValue('--' + name).trim()]));
    return isDark() ? {...own, ...lighter} : own;
  };
  const themed = (value, own) => {
    if (typeof value === 'string') return own[value] ?? value;
    if (Array.isArray(value)) return value.map(item => themed(item, own));
    if (value === null || typeof value !== 'object') return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v, own)]));
  };
  const config = {responsive: true, displaylogo: false, displayModeBar: touch ? false : 'hover',
                  modeBarButtonsToRemove: ['lasso2d', 'select2d']};
  const plots = [...document.querySelectorAll('.plot')];
  const specs = plots.map(p => JSON.parse(document.getElementById(p.id + '-data').textContent));
  const draw = (number, own) => {
    const {data, layout} = themed(specs[number], own);
    layout.hoverlabel = {...layout.hoverlabel, bgcolor: own['@page'], font: {color: own['@ink']}};
    if (!touch) layout.dragmode = 'zoom';
    return Plotly.react(plots[number], data, layout, config);
  };
  const drawAll = async () => {
    button.textContent = isDark() ? 'Light' : 'Dark';
    const own = colours();
    for (let number = 0; number < plots.length; number++) {
      await draw(number, own);
      await new Promise(next => setTimeout(next));
    }
    root.dataset.drawn = plots.length;
  };
  button.addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark';
    drawAll();
  });
  dark.addEventListener('change', drawAll);
  drawAll();
})();
"""


class Page:
    """Sections of a page, in the order in which they are added; every text is escaped here."""

    def __init__(self, title: str, about: str) -> None:
        self.title, self.about = title, about
        self._contents: list[tuple[int, str, str]] = []  # level, anchor, title
        self._body: list[str] = []
        self._figures = 0

    def heading(self, title: str, anchor: str, level: int = 2) -> None:
        """A chapter (2) or a section (3); both stand in the contents."""
        self._contents.append((level, anchor, title))
        self._body.append(f'<h{level} id="{escape(anchor)}">{escape(title)}</h{level}>')

    def text(self, text: str) -> None:
        if text:
            self._body.append(f'<p class="note">{escape(text)}</p>')

    def table(self, table: Table, anchors: Sequence[str] = (), *, wide: bool = False) -> None:
        """Its numbers are links to the anchor of their row; `wide` where cells hold sentences."""
        head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
        rows = []
        for number, row in enumerate(table.rows):
            anchor = escape(anchors[number]) if anchors else ""
            cells = [f'<th scope="row" title="{escape(row[0])}">{escape(row[0])}</th>']
            for column, cell in zip(table.columns[1:], row[1:], strict=False):
                kind = ' class="ref"' if column == REFERENCE else ""
                text = f'<a href="#{anchor}">{escape(cell)}</a>' if anchor else escape(cell)
                cells.append(f"<td{kind}>{text}</td>")
            rows.append(f"<tr>{''.join(cells)}</tr>")
        self._body.append(
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
            f"<table{' class=text' if wide else ''}><thead><tr>{head}</tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table></div>"
        )

    def figure(self, figure: Figure) -> None:
        self._figures += 1
        name = f"figure-{self._figures}"
        spec = {"data": figure.data, "layout": {**figure.layout, "height": figure.height}}
        title = f"<figcaption><b>{escape(figure.title)}</b></figcaption>" if figure.title else ""
        note = f"<figcaption>{escape(figure.note)}</figcaption>" if figure.note else ""
        self._body.append(
            f'<figure>{title}<div class="plot" id="{name}" role="img" '
            f'aria-label="{escape(figure.title or self._contents[-1][2])}" '
            f'style="height:{figure.height}px"></div>{note}'
            f'<script type="application/json" id="{name}-data">{script_json(spec)}</script>'
            "</figure>"
        )

    def run(self, anchor: str, title: str) -> None:
        """The section of a run begins."""
        self._contents.append((3, anchor, title))
        self._body.append(f'<section class="run" id="{escape(anchor)}"><h3>{escape(title)}</h3>')

    def end_run(self) -> None:
        self._body.append("</section>")

    def fold(self, summary: str) -> None:
        """What follows is closed at first."""
        self._body.append(f"<details><summary>{escape(summary)}</summary>")

    def end_fold(self) -> None:
        self._body.append("</details>")

    def command(self, label: str, command: str) -> None:
        self._body.append(
            f'<div class="facts">{escape(label)}</div>'
            f'<pre class="command"><code>{escape(command)}</code></pre>'
        )

    def folded(self, summary: str, text: str) -> None:
        """A long text, closed at first."""
        self.fold(summary)
        self._body.append(f"<pre>{escape(text)}</pre>")
        self.end_fold()

    def pictures(self, summary: str, pictures: Mapping[str, bytes]) -> None:
        """PNGs, closed at first."""
        images = "".join(
            f'<figure><img alt="{escape(name)}" loading="lazy" '
            f'src="data:image/png;base64,{base64.b64encode(data).decode()}">'
            f"<figcaption>{escape(name)}</figcaption></figure>"
            for name, data in pictures.items()
        )
        self.fold(summary)
        self._body.append(images)
        self.end_fold()

    def html(self, provenance: Mapping[str, object]) -> str:
        """The whole file."""
        library = plotly_js() if self._figures else "const Plotly = {};"
        policy = (
            "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
            f"script-src {' '.join(_hashes([library, SCRIPT]))}"
        )
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
            '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">\n'
            f"<title>{escape(self.title)}</title>\n<style>{STYLE}</style>\n"
            '<script type="application/json" id="provenance">'
            f"{script_json(provenance)}</script>\n"
            '<script type="application/json" id="lighter">'
            f"{script_json(IN_THE_DARK)}</script>\n</head><body>\n"
            f"<header><div><h1>{escape(self.title)}</h1>"
            f'<p class="note">{escape(self.about)}</p></div>'
            '<button id="theme" type="button" aria-label="light or dark">Dark</button></header>\n'
            f"<nav>{self._navigation()}</nav>\n<main>\n{chr(10).join(self._body)}\n</main>\n"
            f"<script>{library}</script>\n<script>{SCRIPT}</script>\n</body></html>\n"
        )

    def _navigation(self) -> str:
        items = "".join(
            f'<li><a href="#{escape(anchor)}">{escape(title)}</a></li>'
            for level, anchor, title in self._contents
            if level == 3
        )
        many = len(items) and len(self._contents) > 12
        inner = f"<ul>{items}</ul>"
        return f"<details><summary>Contents</summary>{inner}</details>" if many else inner


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


def _hashes(scripts: Iterable[str]) -> list[str]:
    """Of the scripts that a browser may run; it runs no other."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    return [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
