"""Placement problems that a teacher has planned for, to imitate it and to be measured by it."""

from __future__ import annotations

from agents.placement.labelling import read_dataset
from agents.rllib.subject import Numbers
from envs.bounds import Count, NonNegative, bounded
from envs.errors import InputError
from envs.placement.env import order_class
from envs.placement.episodes import Tokens, WholeProblem
from envs.placement.facts import STARTS
from envs.placement.whole import WholeLayout


@bounded
class LabelledProblems:
    """`agents.rllib.step.problems.Source` of labelled problems; seconds relate to the teacher's.

    Exams are about the last of them, which are never trained on. There is no curriculum.

    Args:
        folder: of the dataset.
        layout: of observations.
        sweeps: of a plan.
        unfit: nats that a plan costs which does not fit.
        kept_back: problems for exams.

    Raises:
        InputError: it is no dataset, or nothing is left to train on; by `draw`: a problem does not
            fit the layout.
    """

    labelled, measured = True, True

    def __init__(
        self,
        folder: str,
        *,
        layout: WholeLayout = WholeLayout(groups=128),
        sweeps: int,
        unfit: NonNegative = 2.0,
        kept_back: Count = 64,
    ) -> None:
        self.problems, self.layout, self.unfit = read_dataset(folder), layout, unfit
        self.trained = len(self.problems) - kept_back
        if self.trained < 1:
            message = f"{kept_back} kept back of {len(self.problems)} labelled problems leave none"
            raise InputError(message, field="kept_back")
        self.tokens = Tokens(sweeps, layout.groups, layout.devices)
        self.observation_space, self.action_space = layout.space(), self.tokens.space
        self._known: dict[int, WholeProblem] = {}

    def draw(self, seed: int, stage: float) -> WholeProblem:
        """One to train on."""
        return self._of(seed % self.trained).at(seed // self.trained % STARTS)

    def exam(self, number: int) -> WholeProblem:
        """The problem of the exam's episode with this number."""
        found = self._of(self.trained + number % (len(self.problems) - self.trained))
        return found.at(number % STARTS)

    def document(self) -> Numbers:
        """Nothing: no problem depends on what came before."""
        return {}

    def restore(self, numbers: Numbers) -> None:
        """Nothing to take over."""

    def _of(self, number: int) -> WholeProblem:
        if number in self._known:
            return self._known[number]
        one = self.problems[number]
        found = self._known[number] = WholeProblem(
            number, one.problem, one.fusion, self.layout, self.tokens, self.unfit, one.seconds
        )
        found.taught = self.tokens.row(one.device, order_class(one.rule))
        return found
