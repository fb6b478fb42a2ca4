"""Tables of one run: printed, written as one Markdown file, their numbers as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import rich.table
from rich.box import SIMPLE

from experiments.run.app import Run
from experiments.run.artifacts import to_json, write_json, write_text
from experiments.run.provenance import Provenance, stamp

TABLE_FILE, NUMBERS_FILE = "table.md", "table.json"
METHOD_WIDTH = 16  # characters of the first column
WIDTH = 132  # characters of a line where there is no terminal


@dataclass(frozen=True)
class Table:
    """One table, as texts; `on_console`: whether it is short enough for a console."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    on_console: bool = True

    def rich(self) -> rich.table.Table:
        table = console_table(self.title, self.columns)
        for row in self.rows:
            table.add_row(*row)
        table.caption = self.note
        return table

    def markdown(self) -> str:
        note = f"{self.note}\n\n" if self.note else ""
        return f"## {self.title}\n\n{note}{markdown_table(self.columns, self.rows)}"


def write_tables(
    run: Run,
    title: str,
    tables: Sequence[Table],
    provenance: Provenance,
    *,
    caption: str = "",
    width: int = WIDTH,
    numbers: Mapping[str, object] | None = None,
) -> None:
    """Print the tables and write them to `TABLE_FILE` of the run folder.

    `numbers` are what stands behind them; they go to `NUMBERS_FILE`.
    """
    if not run.console.is_terminal:
        run.console.width = width
    for table in tables:
        if table.on_console:
            run.console.print(table.rich())
    write_markdown(run, title, [caption, *(table.markdown() for table in tables)], provenance)
    if numbers is not None:
        document = stamp({"title": title, **numbers}, provenance, kind="benchmark")
        write_json(run.folder / NUMBERS_FILE, document)


def write_markdown(run: Run, title: str, parts: Sequence[str], provenance: Provenance) -> None:
    """Write `TABLE_FILE`: a title and what stands below it, parts of no text left out."""
    header = f"<!-- {to_json(stamp({}, provenance, kind='table'))}-->\n"
    text = "\n\n".join(part.rstrip("\n") for part in (header, f"# {title}", *parts) if part)
    write_text(run.folder / TABLE_FILE, f"{text}\n")


def console_table(title: str, columns: Sequence[str]) -> rich.table.Table:
    """An empty table whose headings may wrap and whose first column never does."""
    table = rich.table.Table(
        title=title, title_justify="left", title_style="bold", caption_justify="left", box=SIMPLE
    )
    table.add_column(columns[0], no_wrap=True, min_width=METHOD_WIDTH)
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is left-aligned, the others right-aligned."""
    lines = [columns, ["---", *("---:" for _ in columns[1:])], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
