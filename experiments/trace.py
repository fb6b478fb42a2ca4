"""Traces of jobs: summarise, convert, download, fit, synthesise.

    python -m experiments.trace action=summary trace.path=cluster04.csv.gz trace.format=itp
    python -m experiments.trace action=convert trace.path=philly.csv.gz trace.format=philly \\
        trace.queue=ee9e8c action.output=ee9e8c.parquet
    python -m experiments.trace action=download action.source=itp
    python -m experiments.trace action=synthesise trace.workload=philly trace.jobs=1000000 \\
        trace.load=0.9 trace.gpus=10000 action.output=million.parquet
    python -m experiments.trace action=fit trace.path=jobs.csv action.output=ours.yaml
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from experiments.cluster.trace_source import TraceConfig
from experiments.config.targets import build_as
from experiments.run.app import main_of
from experiments.run.one_run import Result, Run


@runtime_checkable
class TraceAction(Protocol):
    """One thing to do with a trace."""

    def run(self, trace: TraceConfig, run: Run) -> Result: ...


@dataclass(kw_only=True)
class TraceAppConfig:
    """`conf/trace.yaml`; groups are objects by `_target_`."""

    action: Any
    trace: TraceConfig
    seed: int
    json: bool


def trace(config: TraceAppConfig, run: Run) -> Result:
    """Do what `action` says."""
    action = build_as(TraceAction, config.action, "action", "action on a trace")
    return action.run(config.trace, run)


main = main_of("trace")
