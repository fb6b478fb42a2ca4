"""A trace read, and what is done with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from experiments.cluster.trace_source import TraceConfig
from experiments.config.targets import build_as
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
