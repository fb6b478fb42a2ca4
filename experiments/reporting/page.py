"""One HTML file that needs nothing else: no network, no font, no script from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from experiments.reporting.figures import IN_THE_DARK, Figure
from experiments.reporting.sheets import REFERENCE
from experiments.study.tables import Table

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
  const root = document.documentElement;
  const button = document.getElementById('theme');
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const touch = matchMedia('(hover: none)').matches;
  const isDark = () => root.dataset.theme ? root.dataset.theme === 'dark' : dark.matches;
  const template = () => {
    const style = getComputedStyle(root);
    const [ink, grid, page] = ['ink', 'grid', 'page'].map(
      name => style.getPropertyValue('--' + name).trim());
    const axis = {gridcolor: grid, linecolor: grid, zeroline: false, automargin: true,
                  title: {standoff: 8}};
    const clear = 'rgba(0,0,0,0)';
    return {layout: {
      paper_bgcolor: clear, plot_bgcolor: clear, margin: {l: 12, r: 16, t: 12, b: 46},
      font: {color: ink, size: 13, family: 'system-ui, sans-serif'},
      legend: {orientation: 'h', x: 0, y: -0.22, yanchor: 'top', font: {size: 12}},
      hoverlabel: {bgcolor: page, font: {size: 12, color: ink}}, xaxis: axis, yaxis: axis,
      dragmode: touch ? false : 'zoom',
      shapedefaults: {line: {color: ink, dash: 'dot', width: 1.4}},
      annotationdefaults: {showarrow: false, font: {size: 12}, bgcolor: page, borderpad: 1}}};
  };
  const themed = value => {
    if (typeof value === 'string') return lighter[value] ?? value;
    if (Array.isArray(value)) return value.map(themed);
    if (value === null || typeof value !== 'object') return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v)]));
  };
  const config = {responsive: true, displaylogo: false, displayModeBar: touch ? false : 'hover',
                  modeBarButtonsToRemove: ['lasso2d', 'select2d']};
  const plots = [...document.querySelectorAll('.plot')];
  const specs = plots.map(p => JSON.parse(document.getElementById(p.id + '-data').textContent));
  const drawAll = async () => {
    button.textContent = isDark() ? 'Light' : 'Dark';
    for (let number = 0; number < plots.length; number++) {
      const {data, layout} = isDark() ? themed(specs[number]) : specs[number];
      await Plotly.react(plots[number], data, {...layout, template: template()}, config);
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
        title = f"<figcaption><b>{escape(figure.title)}</b></figcaption>" if figure.title else ""
        note = f"<figcaption>{escape(figure.note)}</figcaption>" if figure.note else ""
        self._body.append(
            f'<figure>{title}<div class="plot" id="{name}" role="img" '
            f'aria-label="{escape(figure.title or self._contents[-1][2])}" '
            f'style="height:{figure.drawn.layout.height}px"></div>{note}'
            f'<script type="application/json" id="{name}-data">'
            f"{script_json(json.loads(figure.drawn.to_json()))}</script></figure>"
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
