"""A bandwidth plan as shell files for the machines it is for: one applies it, one takes it back.

python -m experiments.enforce plan=plan.json hosts=hosts.yaml graph=bert_base topology=planes_4x1
python -m experiments.enforce plan=plan.json hosts=hosts.yaml backend=ovs ...

docs/network.md says what stands in the hosts file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agents.bandwidth.enforcement.scripts import Backend
from envs.errors import InputError
from experiments.config.targets import build_as
from experiments.run.app import main_of
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash
from experiments.step.enforcing import lanes_of, print_lanes, read_hosts, write_scripts
from experiments.step.plan_file import read_bandwidth, read_kept_plan
from experiments.step.problem import load_problem, order_rule_of

SHOWN = ("plan", "hosts", "graph", "topology", "backend", "servers")


@dataclass(kw_only=True)
class EnforceConfig:
    """`conf/enforce.yaml`; groups are objects by `_target_`."""

    env: Any
    graph: Any
    topology: Any
    cost: Any
    order: Any
    backend: Any
    plan: str  # a plan file with a section `bandwidth`
    hosts: str  # a file that says which machine each server is: docs/network.md
    seed: int
    json: bool


def enforce(config: EnforceConfig, run: Run) -> Result:
    """Read the plan and the machines, write the files of every server."""
    backend = build_as(Backend, config.backend, "backend", "backend of a bandwidth plan")
    hosts = read_hosts(config.hosts)
    loaded = load_problem(config.env, config.graph, config.topology, config.cost)
    problem = loaded.problem
    read_kept_plan(config.plan, problem, order_rule_of(config.order))
    network = problem.topology.network
    allocation = read_bandwidth(config.plan, network)
    if allocation is None:
        raise InputError("is missing: the plan allocates none", file=config.plan, field="bandwidth")
    provenance = loaded.stamp_on(run.provenance).with_inputs(
        plan=file_hash(config.plan), hosts=file_hash(config.hosts)
    )
    files = write_scripts(
        run.folder, allocation, network, hosts, backend, provenance,
        plan_file=config.plan, hosts_file=config.hosts,
    )  # fmt: skip
    lanes = lanes_of(allocation, network, hosts)
    if not config.json:
        print_lanes(run.console, lanes)
    values: dict[str, object] = {
        "plan": config.plan,
        "hosts": config.hosts,
        "graph": problem.graph.name,
        "topology": problem.topology.name,
        "backend": run.choice("backend", config.backend),
        "servers": len({lane["server"] for lane in lanes}),
        "files": files,
        "lanes": lanes,
    }
    return Result(values, provenance, SHOWN)


main = main_of("enforce")
