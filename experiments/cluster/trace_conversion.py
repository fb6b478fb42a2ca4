"""`action=convert` and `action=synthesise`: a trace to a file of our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from envs.cluster.workload.parquet import write_parquet
from envs.cluster.workload.readers.canonical import ORIGIN, write_csv
from envs.errors import InputError
from experiments.cluster.trace_source import LoadedTrace, TraceConfig, load_trace
from experiments.run.app import Result, Run
from experiments.run.artifacts import write_sidecar
from experiments.run.provenance import Provenance, file_hash


@dataclass(frozen=True)
class Convert:
    """Any format to our own: `output` ends in .csv, .csv.gz or .parquet."""

    output: str

    def __post_init__(self) -> None:
        _writer(self.output)

    def run(self, trace: TraceConfig, run: Run) -> Result:
        """Read it, write it."""
        if trace.path is not None and Path(trace.path).resolve() == Path(self.output).resolve():
            raise InputError("config key 'action.output': is the file that is read")
        return _written(load_trace(trace), self.output, run)


@dataclass(frozen=True)
class Synthesise:
    """Generated jobs to a file as of `Convert`.

    `format` is the name under trace.formats of what generates them.
    """

    output: str
    format: str

    def __post_init__(self) -> None:
        _writer(self.output)

    def run(self, trace: TraceConfig, run: Run) -> Result:
        """Generate it, write it."""
        return _written(load_trace(replace(trace, format=self.format)), self.output, run)


def _written(loaded: LoadedTrace, output: str, run: Run) -> Result:
    path = Path(output)
    for line in loaded.rejections():
        run.console.print(line, soft_wrap=True)
    provenance = run.provenance.with_inputs(**loaded.inputs)
    try:
        _writer(output)(loaded, path, provenance)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror or error})", file=path) from error
    values = {**loaded.counts(), "output": str(path), "sha256": file_hash(path)}
    return Result(values, provenance, ("trace", "rows", "rejected_rows", "jobs", "output"))


def _to_parquet(loaded: LoadedTrace, path: Path, provenance: Provenance) -> None:
    write_parquet(loaded.trace, path, {**provenance.document(), ORIGIN: loaded.origin_s})


def _to_csv(loaded: LoadedTrace, path: Path, provenance: Provenance) -> None:
    write_csv(loaded.trace, path)
    write_sidecar(path, provenance, "trace")


_WRITERS: Mapping[str, Callable[[LoadedTrace, Path, Provenance], None]] = {
    ".csv": _to_csv, ".csv.gz": _to_csv, ".parquet": _to_parquet,
}  # fmt: skip


def _writer(output: str) -> Callable[[LoadedTrace, Path, Provenance], None]:
    for suffix, write in _WRITERS.items():
        if output.endswith(suffix):
            return write
    known = ", ".join(_WRITERS)
    raise InputError(f"config key 'action.output': {output!r} does not end in one of {known}")
