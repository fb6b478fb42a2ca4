"""A trace: the jobs of a cluster as columns, in the order in which they are submitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.errors import InputError
from envs.units import EXACT

WHOLE_GPU = 1000  # thousandths
UNKNOWN = -1  # code of a label that the trace does not give
NUMBERS: dict[str, type[np.int32] | type[np.int64]] = {  # columns of a trace
    "submit_s": np.int64,
    "duration_s": np.int64,
    "num_gpus": np.int32,
    "gpu_milli": np.int32,
    "cpu_milli": np.int64,
    "memory_mib": np.int64,
}
LABELS = ("user", "queue", "gpu_type", "model")
COLUMNS = ("job_id", *NUMBERS, *LABELS)


@dataclass(frozen=True, eq=False)
class Labels:
    """A column of names, as codes.

    Raises:
        InputError: a code without a name.
    """

    codes: NDArray[np.int32]  # (J,) index into names, or UNKNOWN
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        wrong = (self.codes < UNKNOWN) | (self.codes >= len(self.names))
        if wrong.any():
            job = int(np.argmax(wrong))
            raise InputError(f"label {self.codes[job]} has no name", record=job)
        self.codes.flags.writeable = False

    @classmethod
    def unknown(cls, jobs: int) -> Labels:
        """No job has a label."""
        return cls(np.full(jobs, UNKNOWN, np.int32), ())

    @classmethod
    def of(cls, values: Sequence[str | None]) -> Labels:
        """Codes by first appearance; None and "" are unknown."""
        names: dict[str, int] = {}
        codes = [UNKNOWN if not v else names.setdefault(v, len(names)) for v in values]
        return cls(np.array(codes, np.int32), tuple(names))

    def __getitem__(self, job: int) -> str | None:
        code = int(self.codes[job])
        return None if code == UNKNOWN else self.names[code]

    def take(self, jobs: NDArray[np.integer]) -> Labels:
        """The labels of `jobs`, with the same names."""
        return Labels(self.codes[jobs], self.names)


def refuse_rows(table: Any, wrong: BoolArray, field: str) -> None:
    """Refuse the first row of columns whose `field` is wrong."""
    if wrong.any():
        row = int(np.argmax(wrong))
        reason = f"{getattr(table, field)[row]} is impossible here"
        raise InputError(reason, file=table.name, record=row, field=field)


@dataclass(frozen=True, eq=False)
class Trace:
    """J jobs, sorted by submission.

    Raises:
        InputError: columns of different lengths, submissions out of order, a negative number, a
            duration or gang of nothing, more than all of a GPU.
    """

    name: str
    job_id: NDArray[np.str_]  # (J,) as the source calls them
    submit_s: IntArray  # (J,) seconds
    duration_s: IntArray  # (J,) seconds alone on the GPUs asked for, above 0
    num_gpus: NDArray[np.int32]  # (J,) 0 for jobs without GPU
    gpu_milli: NDArray[np.int32]  # (J,) thousandths of each GPU
    cpu_milli: IntArray  # (J,) thousandths of a processor core, 0 where not given
    memory_mib: IntArray  # (J,) MiB of main memory, 0 where not given
    user: Labels
    queue: Labels  # virtual cluster
    gpu_type: Labels  # permitted GPU types, separated by "|"
    model: Labels  # names of profiles

    def __post_init__(self) -> None:
        for field in (*NUMBERS, *LABELS):
            values = getattr(self, field)
            column = values.codes if field in LABELS else values
            if column.shape != self.job_id.shape:
                raise InputError(f"{column.shape} is not {self.job_id.shape}", field=field)
            if field in NUMBERS:
                refuse_rows(
                    self, column < (1 if field in {"duration_s", "gpu_milli"} else 0), field
                )
                refuse_rows(self, column > EXACT, field)
                column.flags.writeable = False
        refuse_rows(self, np.diff(self.submit_s, prepend=self.submit_s[:1]) < 0, "submit_s")
        refuse_rows(self, self.gpu_milli > WHOLE_GPU, "gpu_milli")

    @classmethod
    def of(
        cls,
        name: str,
        submit_s: Sequence[int] | NDArray[np.integer],
        duration_s: Sequence[int] | NDArray[np.integer],
        num_gpus: Sequence[int] | NDArray[np.integer],
        *,
        job_id: Sequence[str] | NDArray[np.str_] | None = None,
        **labels: Sequence[str | None],
    ) -> Trace:
        """Whole-GPU jobs of which no more is known than `labels` say, as `user=["ann", "bob"]`.

        Their ids are 0, 1, ... unless given.
        """
        jobs = len(submit_s)
        return cls(
            name=name,
            job_id=np.arange(jobs).astype(np.str_) if job_id is None else np.asarray(job_id),
            submit_s=np.array(submit_s, np.int64),
            duration_s=np.array(duration_s, np.int64),
            num_gpus=np.array(num_gpus, np.int32),
            gpu_milli=np.full(jobs, WHOLE_GPU, np.int32),
            cpu_milli=np.zeros(jobs, np.int64),
            memory_mib=np.zeros(jobs, np.int64),
            **dict.fromkeys(LABELS, Labels.unknown(jobs))
            | {name: Labels.of(values) for name, values in labels.items()},
        )

    def __len__(self) -> int:
        return len(self.job_id)

    def __repr__(self) -> str:
        gangs = f", {self.num_gpus.min()} to {self.num_gpus.max()} GPUs each" if len(self) else ""
        return (
            f"Trace {self.name}: {len(self):,} jobs in {self.span_s / 3600:.4g} h{gangs}, "
            f"{self.gpu_seconds.sum() / 3600:,.4g} GPU hours"
        )

    def __getitem__(self, job: int) -> Job:
        numbers: dict[str, Any] = {field: int(getattr(self, field)[job]) for field in NUMBERS}
        labels = {field: getattr(self, field)[job] for field in LABELS}
        return Job(job_id=str(self.job_id[job]), **numbers, **labels)

    def __iter__(self) -> Iterator[Job]:
        return (self[job] for job in range(len(self)))

    @property
    def gpu_seconds(self) -> FloatArray:
        """(J,) GPUs times duration: the work of each job."""
        return self.num_gpus * (self.gpu_milli / WHOLE_GPU) * self.duration_s

    @property
    def span_s(self) -> int:
        """Seconds from the first submission to the last."""
        return int(self.submit_s[-1] - self.submit_s[0]) if len(self) else 0

    def take(self, jobs: NDArray[np.integer] | slice, name: str | None = None) -> Trace:
        """Some jobs, in ascending order of their place here."""
        chosen = np.arange(len(self))[jobs]
        columns = {f: getattr(self, f)[chosen] for f in ("job_id", *NUMBERS)}
        labels = {f: getattr(self, f).take(chosen) for f in LABELS}
        return replace(self, name=name or self.name, **columns, **labels)

    def canonical(self) -> Trace:
        """The same jobs from second 0; the first submission is at 0."""
        first = int(self.submit_s[0]) if len(self) else 0
        return replace(self, submit_s=self.submit_s - first)

    def offered_load(self, gpus: int) -> float:
        """GPU-seconds asked for per GPU-second of `gpus` GPUs between first and last submission.

        Raises:
            InputError: all jobs are submitted at once, or `gpus` is below 1.
        """
        if self.span_s == 0 or gpus < 1:
            raise InputError("an offered load needs a span of time and a GPU", file=self.name)
        return float(self.gpu_seconds.sum() / (gpus * self.span_s))


@dataclass(frozen=True)
class Job:
    """A gang: it runs on all of its GPUs at once, or not at all."""

    job_id: str  # as the trace calls it
    submit_s: int
    duration_s: int  # alone, on the GPUs it asks for
    num_gpus: int
    gpu_milli: int  # thousandths of each GPU
    user: str | None
    queue: str | None  # virtual cluster
    gpu_type: str | None  # permitted GPU types, separated by "|"; None: any
    model: str | None  # what it trains: the name of a profile
    cpu_milli: int
    memory_mib: int
