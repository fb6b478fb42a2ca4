"""A step by list simulation, from what its actions took; and what they took, from a recording."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from envs.step.pipeline import Bar, Pipeline, Work
from experiments.execution.split import Split

NEVER = -math.inf
Recording = Sequence[Sequence[Bar]]  # the actions of every rank in one step


@dataclass(frozen=True)
class Measured(Pipeline):
    """Stages whose actions take what was measured; whole backward passes apart from their halves.

    Args:
        taken: seconds of each (work, stage).
        overhead: seconds that the runtime takes between two actions of a rank.
    """

    taken: Mapping[tuple[Work, int], float]
    overhead: float

    def seconds(self, work: Work, stage: int) -> float:
        return self.taken[work, stage] + self.overhead


def measured(split: Split, recordings: Sequence[Recording]) -> Measured:
    """Means over the recorded steps of a plan: what a step takes is a sum of them.

    Between two actions of a rank the runtime works, or waits for what another rank sends. Where
    that was finished before the rank's last action was, the gap is overhead; where the rank waited
    for it, what passes from its end to the start of the action is overhead and transfer.
    """
    taken: dict[tuple[Work, int], list[float]] = defaultdict(list)
    between: list[float] = []
    waited: list[float] = []
    for recording in recordings:
        end = {
            (bar.work is Work.FORWARD, bar.stage, bar.micro_batch): bar.finish
            for row in recording
            for bar in row
            if bar.work is not Work.WEIGHT  # nobody waits for it, nor it for another stage
        }
        for row in recording:
            for number, bar in enumerate(row):
                taken[bar.work, bar.stage].append(bar.finish - bar.start)
                forward = bar.work is Work.FORWARD
                needed = (forward, bar.stage + (-1 if forward else 1), bar.micro_batch)
                arrives = NEVER if bar.work is Work.WEIGHT else end.get(needed, NEVER)
                before = row[number - 1].finish if number else NEVER
                if arrives > before:
                    waited.append(bar.start - arrives)
                elif number:
                    between.append(bar.start - before)
    overhead = fmean(between) if between else 0.0
    transfer = max(0.0, fmean(waited) - overhead) if waited else 0.0
    means = {key: fmean(values) for key, values in taken.items()}
    none, ordered = (0.0,) * len(split.rank), tuple(range(len(split.rank)))
    return Measured(
        split.rank, split.micro_batches, none, none, none, transfer, (ordered,), means, overhead
    )
