"""A distribution as a small table of quantiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray
from envs.bounds import Share, bounded
from envs.cluster.workload.synthetic.arrivals import SessionShape, WeeklyClock
from envs.errors import InputError

_STEPS = np.arange(0, 1.001, 0.02)
_TAIL = np.array([0.99, 0.995, 0.998, 0.999])
GRID = np.unique(np.concatenate([_STEPS, _TAIL, 1 - _TAIL]).round(4))  # probabilities of a table
LEAST_JOBS = 4  # values between two entries of a table
HALVINGS = 4  # of the space between two entries, until straight lines are near enough


@dataclass(frozen=True, eq=False)
class QuantileTable:
    """Quantiles at given probabilities; between them the logarithm rises evenly.

    Where the lower quantile is 0 the quantile itself does.

    Raises:
        InputError: fewer than two entries, probabilities that do not rise from 0 to 1, quantiles
            that fall or are negative.
    """

    probability: FloatArray  # (Q,) from 0 to 1
    quantile: FloatArray  # (Q,)

    def __post_init__(self) -> None:
        p, q = self.probability, self.quantile
        if p.shape != q.shape or len(p) < 2:
            raise InputError(f"{p.shape} and {q.shape}: two or more of both", field="quantile")
        if p[0] != 0 or p[-1] != 1 or not (np.diff(p) > 0).all():
            raise InputError("rises from 0 to 1", field="probability")
        if not np.isfinite(q).all() or q[0] < 0 or (np.diff(q) < 0).any():
            raise InputError("is finite, not negative, and never falls", field="quantile")

    @classmethod
    def fit(cls, values: NDArray[np.floating | np.integer], decimals: int = 0) -> QuantileTable:
        """The table of `values`, at least one, rounded.

        Entries of `GRID` nearer to each other than `LEAST_JOBS` values are left out.
        """
        kept = [0.0]
        for p in GRID[1:-1]:
            room = min(p - kept[-1], 1 - p) * len(values)
            if room >= LEAST_JOBS:
                kept.append(float(p))
        probability = np.array([*kept, 1.0])
        return cls(probability, np.quantile(values, probability).round(decimals))

    @classmethod
    def of(cls, document: Mapping[str, list[float]]) -> QuantileTable:
        columns = [np.asarray(document[key], np.float64) for key in ("probability", "quantile")]
        return cls(columns[0], columns[1])

    def document(self) -> dict[str, list[float]]:
        return {"probability": self.probability.tolist(), "quantile": self.quantile.tolist()}

    def sample(self, count: int, rng: np.random.Generator) -> FloatArray:
        """(count,) ascending values, one in each of `count` equal parts of the distribution.

        Systematic sampling: any number of them has the table's distribution, not only many. Plain
        arithmetic, so that every machine finds the same values.
        """
        points, values = self.probability, self.quantile
        for _ in range(HALVINGS):
            points, values = _halved(points, values)
        p = (np.arange(count) + rng.random()) / max(count, 1)
        at = np.minimum(np.searchsorted(points, p, side="right") - 1, len(points) - 2)
        low, high = points[at], points[at + 1]
        start, end = values[at], values[at + 1]
        return np.asarray(start + (end - start) * ((p - low) / (high - low)))


def _halved(points: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """With an entry in the middle of every two: square roots are exact to the last bit."""
    low, high = values[:-1], values[1:]
    middle = np.where(low > 0, np.sqrt(low * high), (low + high) / 2)
    halves = np.empty((2, 2 * len(points) - 1))
    halves[:, ::2] = points, values
    halves[:, 1::2] = (points[:-1] + points[1:]) / 2, middle
    return halves[0], halves[1]


@bounded
@dataclass(frozen=True)
class Memory:
    """How alike neighbours in a sequence are: r(k) = strength · persistence^k, k places apart."""

    strength: Share  # rank correlation of two jobs of one episode
    persistence: Share  # chance that an episode goes on with the next job


@dataclass(frozen=True, eq=False)
class Durations:
    """How long the jobs of some gang sizes run."""

    num_gpus: tuple[int, ...]
    duration_s: QuantileTable


@dataclass(frozen=True, eq=False)
class WorkloadParameters:
    """A workload as statistics.

    Raises:
        InputError: shares that do not sum to 1, gang sizes that do not ascend, a gang size without
            durations or with two, a chance outside 0..1.
    """

    name: str
    jobs: int  # of the trace it was fitted to
    clock: WeeklyClock
    burst_gap_s: float  # up to this gap between arrivals they are of one burst
    burst_share: float  # of the gaps
    burst_gap: QuantileTable  # seconds between arrivals within a burst
    pause: QuantileTable  # busy seconds between bursts
    gap_memory: Memory
    gang_sizes: tuple[int, ...]  # GPUs, ascending
    gang_shares: tuple[float, ...]  # of the jobs
    sessions: SessionShape
    durations: tuple[Durations, ...]
    duration_memory: Memory  # within a session, among jobs of one gang size

    def __post_init__(self) -> None:
        shares, sizes = np.array(self.gang_shares), np.array(self.gang_sizes)
        if shares.shape != sizes.shape or (shares <= 0).any() or abs(shares.sum() - 1) > 1e-3:
            raise InputError("one share above 0 per size, 1 in all", field="gang_shares")
        if (sizes < 0).any() or (np.diff(sizes) <= 0).any():
            raise InputError("is not negative and ascends", field="gang_sizes")
        covered = sorted(size for entry in self.durations for size in entry.num_gpus)
        if covered != list(self.gang_sizes):
            raise InputError(f"are for {covered}, not {list(self.gang_sizes)}", field="durations")
        for field, values in vars(self.sessions).items():
            if len(values) != len(sizes) or not np.isfinite(values).all():
                raise InputError("a number per gang size", record="sessions", field=field)
        if min(self.sessions.length) < 1:
            raise InputError("is below 1", record="sessions", field="length")
        if not 0 <= self.burst_share <= 1:
            raise InputError("is not from 0 to 1", field="burst_share")

    def document(self) -> dict[str, Any]:
        """As plain numbers, lists and mappings, for a file."""
        return {
            "name": self.name,
            "jobs": self.jobs,
            "daily": self.clock.daily.tolist(),
            "weekly": self.clock.weekly.tolist(),
            "burst_gap_s": self.burst_gap_s,
            "burst_share": self.burst_share,
            "burst_gap": self.burst_gap.document(),
            "pause": self.pause.document(),
            "gap_memory": vars(self.gap_memory).copy(),
            "gang_sizes": list(self.gang_sizes),
            "gang_shares": list(self.gang_shares),
            "sessions": {key: list(values) for key, values in vars(self.sessions).items()},
            "duration_memory": vars(self.duration_memory).copy(),
            "durations": [
                {"num_gpus": list(entry.num_gpus), **entry.duration_s.document()}
                for entry in self.durations
            ],
        }


KEYS = (
    "name", "jobs", "daily", "weekly", "burst_gap_s", "burst_share", "burst_gap", "pause",
    "gap_memory", "gang_sizes", "gang_shares", "sessions", "duration_memory", "durations",
)  # fmt: skip


def workload_parameters(**document: Any) -> WorkloadParameters:
    """The parameters of `WorkloadParameters.document()`, as keywords.

    Raises:
        InputError: a key is missing, unknown, or holds something else than it should.
    """
    _check(document, KEYS, None)
    for key in ("burst_gap", "pause"):
        _check(document[key], ("probability", "quantile"), key)
    for key in ("gap_memory", "duration_memory"):
        _check(document[key], ("strength", "persistence"), key)
    _check(document["sessions"], ("length", "gap_within", "gap_before"), "sessions")
    for row, entry in enumerate(document["durations"]):
        _check(entry, ("num_gpus", "probability", "quantile"), f"durations[{row}]")
    try:
        return _build(document)
    except (TypeError, ValueError) as error:
        raise InputError(f"not a number where one is needed: {error}") from error


def _build(document: Mapping[str, Any]) -> WorkloadParameters:
    return WorkloadParameters(
        name=str(document["name"]),
        jobs=int(document["jobs"]),
        clock=WeeklyClock(
            np.asarray(document["daily"], np.float64), np.asarray(document["weekly"], np.float64)
        ),
        burst_gap_s=float(document["burst_gap_s"]),
        burst_share=float(document["burst_share"]),
        burst_gap=QuantileTable.of(document["burst_gap"]),
        pause=QuantileTable.of(document["pause"]),
        gap_memory=Memory(**document["gap_memory"]),
        gang_sizes=tuple(int(size) for size in document["gang_sizes"]),
        gang_shares=tuple(float(share) for share in document["gang_shares"]),
        sessions=SessionShape(
            **{key: tuple(float(one) for one in row) for key, row in document["sessions"].items()}
        ),
        durations=tuple(
            Durations(tuple(int(size) for size in entry["num_gpus"]), QuantileTable.of(entry))
            for entry in document["durations"]
        ),
        duration_memory=Memory(**document["duration_memory"]),
    )


def _check(document: object, keys: Sequence[str], record: str | None) -> None:
    if not isinstance(document, Mapping):
        raise InputError("is not a mapping", record=record)
    missing = [key for key in keys if key not in document]
    unknown = [str(key) for key in document if key not in keys]
    if missing or unknown:
        word = "missing" if missing else "unknown"
        raise InputError(f"{word} key", record=record, field=(missing or unknown)[0])
