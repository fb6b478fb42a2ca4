"""What a suite has to say: tables, pictures and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from experiments.run.tables import console_table, markdown_table
from experiments.step.suites.cell import Cell, Outcome

SAME = 1e-9  # relative difference, by rounding, of two equal objectives


@dataclass(frozen=True)
class Sheet:
    """One table, as texts.

    Args:
        on_console: whether it is short enough for a console.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    on_console: bool = True

    def rich(self) -> Table:
        """For a console."""
        table = console_table(self.title, self.columns)
        for row in self.rows:
            table.add_row(*row)
        table.caption = self.note
        return table

    def markdown(self) -> str:
        """As a section in Markdown."""
        note = f"{self.note}\n\n" if self.note else ""
        return f"## {self.title}\n\n{note}{markdown_table(self.columns, self.rows)}"


@dataclass(frozen=True, eq=False)
class Report:
    """The tables (as texts), the pictures by file name, and the numbers behind both."""

    sheets: Sequence[Sheet]
    figures: Mapping[str, Figure]
    numbers: Mapping[str, object]
    headline: Mapping[str, object] = field(default_factory=dict)  # scalars shown at the end


@runtime_checkable
class Suite(Protocol):
    """What `suite=` names."""

    @property
    def title(self) -> str:
        """For a reader."""

    @property
    def left_out(self) -> list[str]:
        """Graphs that need published data where there is none."""

    def cells(self) -> list[Cell]:
        """The runs it consists of."""

    def report(self, outcomes: Mapping[Cell, Outcome]) -> Report:
        """What the runs came to."""


def percent(ratio: float) -> str:
    """A relative difference for a reader; nothing where it is not finite."""
    return f"{ratio:+.1%}" if np.isfinite(ratio) else ""


def seconds(value: float) -> str:
    """A duration for a reader; `never` where it is infinite, nothing where there is none."""
    if not np.isfinite(value):
        return "" if np.isnan(value) else "never"
    return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"
