"""The numbers of a rule: sought where its schedules are best, and read from a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from envs.arrays import FloatArray
from envs.bounds import Count, Positive, bounded, check_bounds
from envs.errors import InputError, refused_in
from models.artifacts import read_json_object

Numbers = dict[str, Any]  # by the name of a policy's argument
NUMBERS_KIND = "meshwright.rule_numbers"


class Tried(NamedTuple):
    """Numbers, and what they cost: the less the better."""

    cost: float
    numbers: Numbers


@bounded
@dataclass(frozen=True)
class NumberSearch:
    """Draws at random, then goes on around the best in ever smaller steps.

    Args:
        numbers: what is sought, by name: `{least, most}` for a number between them, or a list of
            what may be taken.
        drawn: at random, over all that there is.
        rounds: of the search around the best.
        near: tried in each round; in each about half of the numbers change at most.
        spread: standard deviation of the first round's changes, in parts of `most - least`; it
            falls linearly.

    Raises:
        InputError: a range or a list holds nothing.
    """

    numbers: Mapping[str, Any]
    drawn: Count = 128
    rounds: Count = 8
    near: Count = 16
    spread: Positive = 0.2

    def __post_init__(self) -> None:
        for name, among in self.numbers.items():
            if isinstance(among, Mapping):
                sound = set(among) == {"least", "most"} and among["least"] < among["most"]
            else:
                sound = isinstance(among, list | tuple) and len(among) > 0
            if not sound:
                message = f"{among!r} is neither a least and a most nor a list"
                raise InputError(message, field=f"numbers.{name}")

    def tried(
        self,
        start: Numbers,
        costs: Callable[[Sequence[Numbers]], FloatArray],
        rng: np.random.Generator,
    ) -> list[Tried]:
        """`start` and all else that was tried, the best first; `costs` are of many at a time."""
        found: list[Tried] = []
        for number in range(self.rounds + 1):
            found = self.round(number, start, found, costs, rng)
        return found

    def round(
        self,
        number: int,
        start: Numbers,
        found: Sequence[Tried],
        costs: Callable[[Sequence[Numbers]], FloatArray],
        rng: np.random.Generator,
    ) -> list[Tried]:
        """`found` and what a round tries, the best first; round 0: `start` and what is drawn."""
        if number == 0:
            asked = [start]
            asked += [{x: self._drawn(x, rng) for x in self.numbers} for _ in range(self.drawn)]
        else:
            spread = self.spread * (self.rounds - number + 1) / self.rounds
            asked = [self._near(found[0].numbers, spread, rng) for _ in range(self.near)]
        tried = map(Tried, costs(asked).tolist(), asked)
        return sorted([*found, *tried], key=lambda one: one.cost)

    def _drawn(self, name: str, rng: np.random.Generator) -> Any:
        among = self.numbers[name]
        if isinstance(among, Mapping):
            return float(rng.uniform(among["least"], among["most"]))
        return among[int(rng.integers(len(among)))]

    def _near(self, numbers: Numbers, spread: float, rng: np.random.Generator) -> Numbers:
        changed = dict(numbers)
        count = int(rng.integers(1, len(numbers) // 2 + 2))
        for name in rng.permutation(list(self.numbers))[:count].tolist():
            among = self.numbers[name]
            if isinstance(among, Mapping):
                low, high = among["least"], among["most"]
                moved = numbers[name] + spread * (high - low) * rng.normal()
                changed[name] = float(np.clip(moved, low, high))
            else:
                changed[name] = self._drawn(name, rng)
        return changed


def read_numbers(path: str, known: Mapping[str, Any], hints: Mapping[str, Any]) -> Numbers:
    """The numbers in a file that `experiments.train task=rule` wrote.

    Args:
        path: of the file.
        known: numbers by name, for their types.
        hints: their bounds.

    Raises:
        InputError: naming the file and what is wrong with it.
    """
    document = read_json_object(Path(path))
    numbers = document.get("numbers")
    if document.get("kind") != NUMBERS_KIND or not isinstance(numbers, dict):
        raise InputError(f"is not of kind {NUMBERS_KIND}", file=path, field="kind")
    for name, value in numbers.items():
        field = f"numbers.{name}"
        if name not in known:
            raise InputError(f"is unknown (known: {', '.join(known)})", file=path, field=field)
        if type(value) is not type(known[name]):
            kind = type(known[name]).__name__
            raise InputError(f"{value!r} is no {kind}", file=path, field=field)
        with refused_in(path):
            check_bounds(value, hints[name], field)
    return numbers
