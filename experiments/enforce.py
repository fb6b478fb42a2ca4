"""A bandwidth plan as shell files for the machines it is for: one applies it, one takes it back.

python -m experiments.enforce plan=plan.json hosts=hosts.yaml graph=bert_base topology=planes_4x1
python -m experiments.enforce plan=plan.json hosts=hosts.yaml backend=ovs ...

docs/network.md says what stands in the hosts file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from agents.bandwidth.enforce import Backend, enforcement_files
from agents.bandwidth.enforcement.hosts import Hosts
from agents.bandwidth.enforcement.server_plan import server_plans
from envs.errors import InputError
from envs.hardware.network import Network
from envs.step.plans import BandwidthAllocation
from experiments.run.app import Result, Run, run_app
from experiments.run.artifacts import write_text
from experiments.run.provenance import Provenance, file_hash
from experiments.run.targets import build, no_such_thing
from experiments.step.hosts_file import read_hosts
from experiments.step.plan_file import read_bandwidth, read_plan
from experiments.step.problem import load_problem, order_rule_of

SHOWN = ("plan", "hosts", "graph", "topology", "backend", "servers")
_COLUMNS = ("server", "interface", "to", "plan (bytes/s)", "payload (bytes/s)", "queue (bit/s)")


@dataclass
class EnforceConfig:
    """`conf/enforce.yaml`; groups are objects by `_target_`."""

    env: Any
    graph: Any
    topology: Any
    cost: Any
    order: Any
    backend: Any
    plan: str
    hosts: str
    seed: int
    json: bool


def enforce(config: EnforceConfig, run: Run) -> Result:
    """Read the plan and the machines, write the files of every server."""
    backend: Any = build(config.backend)
    if not hasattr(backend, "script"):
        raise no_such_thing("backend", config.backend, "backend of a bandwidth plan")
    hosts = read_hosts(config.hosts)
    loaded = load_problem(config.env, config.graph, config.topology, config.cost)
    problem = loaded.problem
    read_plan(config.plan, problem, order_rule_of(config.order))
    network = problem.topology.network
    allocation = read_bandwidth(config.plan, network)
    if allocation is None:
        raise InputError("is missing: the plan allocates none", file=config.plan, field="bandwidth")
    provenance = loaded.stamp_on(run.provenance).with_inputs(
        plan=file_hash(config.plan), hosts=file_hash(config.hosts)
    )
    files = _write(run.folder, allocation, network, hosts, backend, config, provenance)
    lanes = _lanes(allocation, network, hosts)
    if not config.json:
        _print(run.console, lanes)
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


def _write(
    folder: Path,
    allocation: BandwidthAllocation,
    network: Network,
    hosts: Hosts,
    backend: Backend,
    config: EnforceConfig,
    provenance: Provenance,
) -> list[str]:
    """Write the files of every server; their paths."""
    notes = [
        "",
        f"From {config.plan} and {config.hosts}.",
        f"Version {provenance.package_version}, commit {provenance.git_commit}; SHA-256:",
        *(f"  {name}: {digest}" for name, digest in provenance.inputs.items()),
    ]
    try:
        files = enforcement_files(allocation, network, hosts, backend, notes)
    except InputError as error:
        place = config.plan if error.field == "bandwidth" else config.hosts
        raise InputError(
            error.message, file=place, record=error.record, field=error.field
        ) from error
    for file in files:
        write_text(folder / file.name, file.text)
    return [str(folder / file.name) for file in files]


def _lanes(
    allocation: BandwidthAllocation, network: Network, hosts: Hosts
) -> list[dict[str, object]]:
    """What every server sends to whom, as the table and `result.json` show it."""
    framing = hosts.framing
    return [
        {
            "server": plan.host.name,
            "interface": up.nic.interface,
            "to": lane.destination.name,
            "channel": lane.channel,
            "rate": lane.rate,
            "payload_rate": framing.payload_rate(lane.rate),
            "queue_bits_per_second": lane.bits(framing),
        }
        for plan in server_plans(allocation, network, hosts)
        for up in plan.uplinks
        for lane in up.lanes
    ]


def _print(console: Console, lanes: Sequence[dict[str, object]]) -> None:
    keys = ("server", "interface", "to", "rate", "payload_rate", "queue_bits_per_second")
    table = Table(box=SIMPLE)
    for number, column in enumerate(_COLUMNS):
        table.add_column(column, justify="right" if number >= 3 else "left")
    for lane in lanes:
        table.add_row(*(f"{v:.6g}" if isinstance(v := lane[k], float) else str(v) for k in keys))
    console.print(table)


if __name__ == "__main__":
    sys.exit(run_app("enforce", EnforceConfig, enforce))
