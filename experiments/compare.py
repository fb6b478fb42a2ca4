"""Replay a trace on a cluster under many scheduling policies: one table, and their pictures.

python -m experiments.compare
python -m experiments.compare trace.path=jobs.csv trace.format=itp placement=least_interference
python -m experiments.compare +agent@agents.checkpoint=checkpoint interference=analytic \\
    'cluster.gpu_types=[V100,P100,T4]'
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import MinLen

from envs.errors import InputError, meant
from experiments.cluster.evaluate_cluster import checkpoint_inputs
from experiments.cluster.problem import ClusterProblem, built_policy, cluster_of
from experiments.cluster.replays import replays, write_replays
from experiments.cluster.trace_source import TraceConfig, load_trace
from experiments.run.app import main_of
from experiments.run.one_run import Result, Run


@dataclass(kw_only=True)
class CompareConfig:
    """`conf/compare.yaml`; groups are objects by `_target_`."""

    agents: Annotated[dict[str, Any], MinLen(1)]
    placement: Any
    interference: Any
    trace: TraceConfig
    cluster: Any
    overheads: Any
    # nodes that fail: _target_: envs.cluster.simulation.incidents.Failures, with its
    # arguments
    failures: Any = None
    # names under agents, those alone: [fifo, srtf]; null: all of them
    policies: Annotated[Sequence[str], MinLen(1)] | None = None
    # policies in the picture of the cluster over time
    shown: Sequence[str] = ("fifo", "fifo_backfill", "las_2d", "srtf")
    seed: int
    json: bool

    def __post_init__(self) -> None:
        for key, names in (("shown", self.shown), ("policies", self.policies or [])):
            for name in names:
                if name not in self.agents:
                    near = meant(name, self.agents)
                    told = f"'{name}' is no policy here ({near}known: {', '.join(self.agents)})"
                    raise InputError(f"config key '{key}': {told}")


def compare(config: CompareConfig, run: Run) -> Result:
    start = time.perf_counter()
    run.begin("reading the jobs")
    source = load_trace(config.trace, cluster_of(config.cluster))
    problem = ClusterProblem.of(
        source.trace, config.cluster, config.interference, config.overheads, config.failures
    )
    asked = config.policies or list(config.agents)
    agents = {name: node for name, node in config.agents.items() if name in asked}
    policies = {name: built_policy(node, f"agents.{name}") for name, node in agents.items()}
    run.begin("replaying them under every policy")
    added = [name for name in policies if f"+agent@agents.{name}=" in " ".join(run.overrides)]
    shown = [name for name in dict.fromkeys([*config.shown, *added]) if name in policies]
    with source.located():
        found = replays(problem, policies, shown, run.console)
    placement = run.choice("placement", config.placement)
    interference = run.choice("interference", config.interference)
    title = f"{problem.title}, placement {placement}, interference {interference}"
    provenance = run.provenance.with_inputs(**source.inputs, **checkpoint_inputs(agents))
    written = write_replays(found, shown, problem, title, run, provenance)
    source.tell_changes(run.console)
    least, *others = written["policies"]
    ties = [x["policy"] for x in others if x["mean_jct_s"] <= least["mean_jct_s"] * (1 + 1e-9)]
    values: dict[str, object] = {
        **source.counts(),
        "gpus": problem.cluster.num_gpus,
        **written,
        "as_good": ", ".join(ties),
        "seconds": time.perf_counter() - start,
    }
    return Result(values, provenance, shown=("jobs", "best", "as_good", "table", "seconds"))


main = main_of("compare")
