"""Tables of one run: printed, written as Markdown and LaTeX, read again; their numbers as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import rich.table
from rich.box import SIMPLE
from rich.cells import cell_len

from experiments.run.artifacts import to_json, write_figure, write_json, write_text
from experiments.run.one_run import Run
from experiments.run.provenance import Provenance, stamp

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE_FILE, NUMBERS_FILE = "table.md", "table.json"
SENTENCE = 40  # characters of a cell: a column with a longer one begins at the left
METHOD_WIDTH = 16  # characters of the first column
Columns = Mapping[str, str | Callable[[Any], str]]  # headings, and how cells are made
WIDTH = 132  # characters of a line where there is no terminal


@dataclass(frozen=True)
class Table:
    """One table, as texts; `on_console`: whether it is short enough for a console."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    on_console: bool = True

    @classmethod
    def of(
        cls,
        title: str,
        columns: Columns,
        records: Iterable[Mapping[str, Any]],
        note: str = "",
    ) -> Table:
        """A row for each record; headings map to formats of its fields, or to functions of it."""
        forms: list[Callable[[Any], str]] = [
            x.format_map if isinstance(x, str) else x for x in columns.values()
        ]
        return cls(title, [*columns], [[form(row) for form in forms] for row in records], note)

    @classmethod
    def plain(cls, title: str, records: Sequence[Mapping[str, Any]], digits: int) -> Table:
        """A row for each record and a column for each key; fractions have so many digits."""
        columns = dict.fromkeys(key for record in records for key in record)
        rows = [
            [f"{x:.{digits}g}" if isinstance(x, float) else str(x) for x in cells]
            for cells in ([record.get(key, "") for key in columns] for record in records)
        ]
        return cls(title, [*columns], rows)

    def rich(self, width: int = WIDTH) -> rich.table.Table:
        """For lines of `width` characters, or of `least_width` where that is more."""
        table = console_table(self.title, self.columns)
        for row in self.rows:
            table.add_row(*map(in_words, row))
        for number, column in enumerate(table.columns):
            if any(len(row[number]) > SENTENCE for row in self.rows):
                column.justify = "left"
        least, wide = self._least(), self._widths(lambda cell: [cell])
        while _line(wide) > width and wide != least:  # the widest of those that may give way
            widest = max(range(len(wide)), key=lambda n: wide[n] if wide[n] > least[n] else -1)
            wide[widest] -= 1
        for column, size in zip(table.columns, wide, strict=True):
            column.width = size
        table.caption = self.note
        return table

    def least_width(self) -> int:
        """Characters of a line that breaks no word and no number."""
        return _line(self._least())

    def parts(self, width: int) -> Iterator[Table]:
        """Columns side by side as far as they fit a line, each part with the first one."""
        least, numbers = self._least(), [0]
        parts = [numbers]
        for number in range(1, len(self.columns)):
            if len(numbers) > 1 and _line([least[n] for n in (*numbers, number)]) > width:
                numbers = [0]
                parts.append(numbers)
            numbers.append(number)
        for part, numbers in enumerate(parts, 1):
            columns = [self.columns[n] for n in numbers]
            rows = [[row[n] for n in numbers] for row in self.rows]
            title, note = self.title if part == 1 else "", self.note if part == len(parts) else ""
            yield replace(self, title=title, columns=columns, rows=rows, note=note)

    def _least(self) -> list[int]:
        return self._widths(lambda cell: [word[:SENTENCE] for word in cell.split()])

    def _widths(self, words: Callable[[str], list[str]]) -> list[int]:
        """The longest of the `words` of each column, and the first column as a whole."""
        columns = [
            [self.columns[n], *(in_words(row[n]) for row in self.rows)]
            for n in range(len(self.columns))
        ]
        wide = [
            max((cell_len(x) for cell in cells for x in words(cell)), default=0)
            for cells in columns
        ]
        wide[0] = max(METHOD_WIDTH, *map(cell_len, columns[0]))
        return wide

    def markdown(self) -> str:
        note = f"\n{self.note}\n" if self.note else ""
        return f"## {_markdown(self.title)}\n\n{markdown_table(self.columns, self.rows)}{note}"

    def latex(self) -> str:
        """A `table` of the booktabs package."""
        lines = [
            " & ".join(map(latex_text, cells)) + r" \\" for cells in (self.columns, *self.rows)
        ]
        return "\n".join(
            [
                r"\begin{table}",
                rf"\caption{{{latex_text(' '.join(filter(None, (self.title + '.', self.note))))}}}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}",
                r"\toprule",
                lines[0],
                r"\midrule",
                *lines[1:],
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )


def _line(widths: Sequence[int]) -> int:
    """Characters of a line of columns with the gaps that `SIMPLE` leaves."""
    return sum(widths) + 3 * len(widths) + 1


def write_tables(
    run: Run,
    title: str,
    tables: Sequence[Table],
    provenance: Provenance,
    *,
    caption: str = "",
    width: int = WIDTH,
    numbers: Mapping[str, object] | None = None,
    figures: Mapping[str, Figure] | None = None,
) -> str:
    """Print the tables and write them to `TABLE_FILE` of the run folder, whose path is returned.

    `numbers` are what stands behind them; they go to `NUMBERS_FILE`, and `figures` to their names.
    """
    shown = [table for table in tables if table.on_console]
    if not run.console.is_terminal:
        run.console.width = max([width, *(table.least_width() for table in shown)])
    for table in shown:
        for part in table.parts(run.console.width):
            run.console.print(part.rich(run.console.width))
    notes = f"## Notes\n\n{caption}" if caption else ""
    write_markdown(run, title, [*(table.markdown() for table in tables), notes], provenance)
    for name, figure in (figures or {}).items():
        write_figure(run.folder / name, figure, provenance)
    if numbers is not None:
        document = stamp({"title": title, **numbers}, provenance, kind="benchmark")
        write_json(run.folder / NUMBERS_FILE, document)
    return str(run.folder / TABLE_FILE)


def write_markdown(
    run: Run,
    title: str,
    parts: Sequence[str],
    provenance: Provenance,
    name: str = TABLE_FILE,
) -> None:
    """Write a title and what stands below it, parts of no text left out."""
    header = f"<!-- {to_json(stamp({}, provenance, kind='table'))}-->\n"
    text = "\n\n".join(part.rstrip("\n") for part in (header, f"# {title}", *parts) if part)
    write_text(run.folder / name, f"{text}\n")


def console_table(title: str, columns: Sequence[str]) -> rich.table.Table:
    """An empty table whose headings may wrap and whose first column never does."""
    table = rich.table.Table(
        title=title, title_justify="left", title_style="bold", caption_justify="left", box=SIMPLE
    )
    table.add_column(columns[0], no_wrap=True, min_width=METHOD_WIDTH)
    for column in columns[1:]:
        table.add_column(column, justify="right", overflow="fold")
    return table


NOT_KNOWN, NO_END = "not known", "without end"
_NO_NUMBER = re.compile(r"[+-]?\b(nan|inf)\b( ?%)?")


def in_words(cell: str) -> str:
    """A cell without `nan` and `inf`, which are no words."""
    return _NO_NUMBER.sub(lambda found: NOT_KNOWN if found[1] == "nan" else NO_END, cell)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is left-aligned, the others right-aligned."""
    words = [[in_words(cell) for cell in row] for row in rows]
    lines = [columns, ["---", *("---:" for _ in columns[1:])], *words]
    return "".join(f"| {' | '.join(map(_markdown, cells))} |\n" for cells in lines)


def read_tables(text: str) -> Iterator[Table]:
    """The tables that `Table.markdown` and `markdown_table` have written, with their notes."""
    title, found = "", None
    note: list[str] = []
    lines = iter(_COMMENT.sub("", text).splitlines())
    for line in lines:
        begins = line.startswith("#")
        if found is not None and (begins or _ROW.match(line)):
            yield replace(found, note=" ".join(note))
            found, note = None, []
        if begins:
            title, note = _plain(line.lstrip("#").strip()), []
        elif _ROW.match(line):
            columns, rows = _cells(line), []
            for row in lines:
                if not _ROW.match(row):
                    break
                rows.append(_cells(row))
            found = Table(title, columns, rows[1:]) if rows else None
        elif line.strip():
            note.append(line.strip())
    if found is not None:
        yield replace(found, note=" ".join(note))


_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_ROW = re.compile(r"\|.*\|\s*$")
_SPLIT = re.compile(r"(?<!\\)\|")  # a bar of a name is written with a backslash


def _markdown(cell: str) -> str:
    """A text on one line, whose bars and angles are no markup."""
    line = " ".join(cell.split())
    return line.replace("|", r"\|").replace("<", "&lt;").replace(">", "&gt;")


def _plain(cell: str) -> str:
    return cell.replace(r"\|", "|").replace("&lt;", "<").replace("&gt;", ">")


def _cells(line: str) -> list[str]:
    return [_plain(cell.strip()) for cell in _SPLIT.split(line.strip())[1:-1]]


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "\N{MULTIPLICATION SIGN}": r"$\times$", "≥": r"$\geq$", "≤": r"$\leq$",
    "<": r"$<$", ">": r"$>$", "|": r"$|$", "\N{EN DASH}": "--", "—": "---", "…": r"\ldots{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}  # fmt: skip


def latex_text(text: str) -> str:
    """A text on one line in LaTeX, none of whose characters is a command."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
