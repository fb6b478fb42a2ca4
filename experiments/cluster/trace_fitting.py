"""`action=fit`: the statistics of a trace, from which any number of jobs like it can be made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from envs.cluster.workload.synthetic.agreement import agreement
from envs.cluster.workload.synthetic.fit import fit
from envs.cluster.workload.synthetic.generate import generate
from envs.cluster.workload.synthetic.weekly_clock import EPOCH_S
from envs.errors import InputError
from experiments.cluster.trace_source import TraceConfig, load_trace
from experiments.cluster.workload_file import write_workload
from experiments.run.app import Result, Run

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Fit:
    """Writes `output`, YAML in the form of conf/workload, for `trace.workload=<output>`.

    `name` is that of the traces made of it. What a trace of as many jobs then has in common with
    the one measured is in the result.
    """

    output: str
    name: str

    def __post_init__(self) -> None:
        if not self.output.endswith(SUFFIXES):
            known = ", ".join(SUFFIXES)
            raise InputError(
                f"config key 'action.output': {self.output!r} does not end in one of {known}"
            )

    def run(self, trace: TraceConfig, run: Run) -> Result:
        """Measure the trace, write its statistics, make a trace of them and compare."""
        loaded = load_trace(trace)
        for line in loaded.rejections():
            run.console.print(line, soft_wrap=True)
        found = fit(loaded.trace, name=self.name, origin_s=loaded.origin_s + EPOCH_S)
        alike = agreement(loaded.trace, generate(found, len(loaded.trace), trace.seed))
        provenance = run.provenance.with_inputs(**loaded.inputs)
        path = Path(self.output)
        about = f"Statistics of {loaded.trace.name}: {len(loaded.trace):,} jobs."
        try:
            write_workload(path, found, about, provenance)
        except OSError as error:
            raise InputError(f"cannot be written ({error.strerror or error})", file=path) from error
        values = {**loaded.counts(), **asdict(alike), "output": str(path)}
        return Result(values, provenance)
