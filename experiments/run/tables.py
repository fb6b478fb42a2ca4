"""Several tables of one run: printed, and written as one Markdown file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from experiments.run.app import Run
from experiments.run.artifacts import to_json, write_text
from experiments.run.provenance import Provenance, stamp
from experiments.step.comparison import console_table, markdown_table

TABLE_FILE = "table.md"


class Section(NamedTuple):
    """A table under a heading."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def write_tables(
    run: Run,
    title: str,
    caption: str,
    sections: Sequence[Section],
    provenance: Provenance,
    width: int,
) -> None:
    """Print the tables and write them to `TABLE_FILE` of the run folder.

    Args:
        run: whose console and folder.
        title: of the file.
        caption: what stands below it.
        sections: the tables.
        provenance: written into the file.
        width: characters of a printed line where there is no terminal.
    """
    if not run.console.is_terminal:
        run.console.width = width
    text = f"<!-- {to_json(stamp({}, provenance, kind='table'))}-->\n\n# {title}\n\n{caption}\n"
    for heading, columns, rows in sections:
        table = console_table(heading, tuple(columns))
        for row in rows:
            table.add_row(*row)
        run.console.print(table)
        text += f"\n## {heading}\n\n{markdown_table(tuple(columns), rows)}"
    write_text(run.folder / TABLE_FILE, text)
