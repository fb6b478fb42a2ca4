"""What is the same for all that is learned about training steps."""

from __future__ import annotations

from agents.rllib.subject import Numbers, Solution


class KeepsBest:
    """Of `agents.rllib.subject.Subject`: the fastest plan met in training is kept."""

    best: Solution | None = None

    def offer(self, found: Solution) -> None:
        """Keep `found` if it is faster than all before."""
        if self.best is None or found.objective < self.best.objective:
            self.best = found

    def document(self) -> Numbers:
        best = self.best
        return {"best": None if best is None else [best.objective, best.lists()]}

    def restore(self, numbers: Numbers) -> None:
        best = numbers["best"]
        self.best = None if best is None else Solution.of(*best)
