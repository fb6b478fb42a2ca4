"""A suite of cells that take seconds, whose table holds no time that a clock has measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.study.grid import AppCell, Document
from experiments.study.suite import Check, Report
from experiments.study.tables import Table

SCHEMA = "experiments.step.evaluate_step.EvaluateConfig"


@dataclass(frozen=True)
class CheapSuite:
    """Random placements of the toy, and one plan more that needs the first of them."""

    title = "Cheap"
    own = ("seed=", "hydra.")
    left_out = ()
    words = ("env=placement_toy", "agent=random")

    def checks(self) -> Iterator[Check]:
        yield Check("toy", "evaluate", SCHEMA, self.words)

    def grid(self, folder: Path, seed: int) -> list[AppCell]:
        cells = [
            AppCell(f"seed {n}", "evaluate", (*self.words, f"seed={n}"), folder / f"seed_{n}")
            for n in range(20)
        ]
        words = ("env=placement_toy", "agent=contiguous")
        last = AppCell("last", "evaluate", words, folder / "last", needs=(cells[0],))
        return [*cells, last]

    def summary(self, found: Mapping[AppCell, Document]) -> Report:
        rows = [(cell.name, f"{document['step_time_s']!r}") for cell, document in found.items()]
        return Report([Table("Step times", ("cell", "seconds"), rows)], {}, {"rows": rows})
