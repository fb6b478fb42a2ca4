"""A distribution as a small table of quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, GetPydanticSchema, PlainSerializer

from envs.arrays import FloatArray
from envs.bounds import Share
from envs.cluster.workload.synthetic.arrivals import SessionShape, WeeklyClock
from envs.errors import InputError
from envs.forms import Form, read_form

_STEPS = np.arange(0, 1.001, 0.02)
_TAIL = np.array([0.99, 0.995, 0.998, 0.999])
GRID = np.unique(np.concatenate([_STEPS, _TAIL, 1 - _TAIL]).round(4))  # probabilities of a table
LEAST_JOBS = 4  # values between two entries of a table
HALVINGS = 4  # of the space between two entries, until straight lines are near enough


def _listed(values: object) -> object:
    return values.tolist() if isinstance(values, np.ndarray) else values


_NUMBERS = Annotated[
    Sequence[float], BeforeValidator(_listed), AfterValidator(np.array),
    PlainSerializer(np.ndarray.tolist),
]  # fmt: skip
Vector = Annotated[FloatArray, GetPydanticSchema(lambda _, handler: handler(_NUMBERS))]


class QuantileTable(Form):
    """Quantiles at given probabilities; between them the logarithm rises evenly.

    Where the lower quantile is 0 the quantile itself does.

    Raises:
        InputError: fewer than two entries, probabilities that do not rise from 0 to 1, quantiles
            that fall or are negative.
    """

    probability: Vector  # (Q,) from 0 to 1
    quantile: Vector  # (Q,)

    def model_post_init(self, context: Any) -> None:
        p, q = self.probability, self.quantile
        if p.shape != q.shape or len(p) < 2:
            raise InputError(f"{p.shape} and {q.shape}: two or more of both", field="quantile")
        if p[0] != 0 or p[-1] != 1 or not (np.diff(p) > 0).all():
            raise InputError("rises from 0 to 1", field="probability")
        if q[0] < 0 or (np.diff(q) < 0).any():
            raise InputError("is not negative, and never falls", field="quantile")

    @classmethod
    def fit(cls, values: NDArray[np.floating | np.integer]) -> QuantileTable:
        """The table of `values`, at least one, rounded.

        Entries of `GRID` nearer to each other than `LEAST_JOBS` values are left out.
        """
        kept = [0.0]
        for p in GRID[1:-1]:
            room = min(p - kept[-1], 1 - p) * len(values)
            if room >= LEAST_JOBS:
                kept.append(float(p))
        probability = np.array([*kept, 1.0])
        quantile = np.quantile(values, probability).round()
        return cls(probability=probability, quantile=quantile)

    def sample(self, count: int, rng: np.random.Generator) -> FloatArray:
        """(count,) ascending values, one in each of `count` equal parts of the distribution.

        Systematic sampling: any number of them has the table's distribution, not only many. Plain
        arithmetic, so that every machine finds the same values.
        """
        points, values = self.probability, self.quantile
        for _ in range(HALVINGS):  # square roots are exact to the last bit
            low, high = values[:-1], values[1:]
            middle = np.where(low > 0, np.sqrt(low * high), (low + high) / 2)
            values = np.insert(values, np.arange(1, len(values)), middle)
            points = np.insert(points, np.arange(1, len(points)), (points[:-1] + points[1:]) / 2)
        p = (np.arange(count) + rng.random()) / max(count, 1)
        at = np.minimum(np.searchsorted(points, p, side="right") - 1, len(points) - 2)
        low, high = points[at], points[at + 1]
        start, end = values[at], values[at + 1]
        return np.asarray(start + (end - start) * ((p - low) / (high - low)))


class Memory(Form):
    """How alike neighbours in a sequence are: r(k) = strength · persistence^k, k places apart."""

    strength: Share  # rank correlation of two jobs of one episode
    persistence: Share  # chance that an episode goes on with the next job


class _Gangs(Form):
    num_gpus: Sequence[int]  # the first key in a file


class Durations(QuantileTable, _Gangs):
    """How many seconds the jobs of some gang sizes run."""


class WorkloadParameters(Form):
    """A workload as statistics; its form in a file, too.

    Raises:
        InputError: shares that do not sum to 1, gang sizes that do not ascend, a gang size without
            durations or with two, a chance outside 0..1.
    """

    name: str
    jobs: int  # of the trace it was fitted to
    daily: Vector  # (24,) of `clock`
    weekly: Vector  # (7,)
    burst_gap_s: float  # up to this gap between arrivals they are of one burst
    burst_share: Share  # of the gaps
    burst_gap: QuantileTable  # seconds between arrivals within a burst
    pause: QuantileTable  # busy seconds between bursts
    gap_memory: Memory
    gang_sizes: Sequence[int]  # GPUs, ascending
    gang_shares: Sequence[float]  # of the jobs
    sessions: SessionShape
    duration_memory: Memory  # within a session, among jobs of one gang size
    durations: Sequence[Durations]

    def model_post_init(self, context: Any) -> None:
        shares, sizes = np.array(self.gang_shares), np.array(self.gang_sizes)
        if shares.shape != sizes.shape or (shares <= 0).any() or abs(shares.sum() - 1) > 1e-3:
            raise InputError("one share above 0 per size, 1 in all", field="gang_shares")
        if (sizes < 0).any() or (np.diff(sizes) <= 0).any():
            raise InputError("is not negative and ascends", field="gang_sizes")
        covered = sorted(size for entry in self.durations for size in entry.num_gpus)
        if covered != list(self.gang_sizes):
            raise InputError(f"are for {covered}, not {list(self.gang_sizes)}", field="durations")
        for field, values in self.sessions:
            if len(values) != len(sizes):
                raise InputError("a number per gang size", record="sessions", field=field)
        if min(self.sessions.length) < 1:
            raise InputError("is below 1", record="sessions", field="length")
        assert self.clock

    def document(self) -> dict[str, Any]:
        """As plain numbers, lists and mappings, for a file."""
        return self.model_dump(mode="json")

    @cached_property
    def clock(self) -> WeeklyClock:
        """When jobs arrive."""
        return WeeklyClock(self.daily, self.weekly)


def workload_parameters(**document: Any) -> WorkloadParameters:
    """The parameters in their form in a file, as keywords.

    Raises:
        InputError: a key is missing, unknown, or holds something else than it should.
    """
    return read_form(WorkloadParameters, document)
