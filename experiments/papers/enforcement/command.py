"""A bandwidth plan on real machines: scripts for tc or Open vSwitch, two for each server.

python -m experiments.export plan=plan.json hosts=hosts.yaml graph=bert_base topology=planes_4x1
python -m experiments.export plan=plan.json hosts=hosts.yaml graph=bert_base topology=planes_4x1 \\
    backend=ovs

The hosts file is YAML:

mtu: 1500                # bytes of the largest IP packet on the links
line_overhead: 24        # bytes of a frame the kernel does not count: 24 on Ethernet, 0 on veth
servers:
  node-a:                # a machine; its files are called after it
    address: 10.255.0.1  # of the machine itself, on its loopback
    nics:
      server0/nic0:      # a NIC of the topology
        interface: eth1  # what the kernel calls it
        address: 10.0.0.1  # of the NIC, or of its bridge
        bridge: br-eth1  # the Open vSwitch bridge it is a port of; only for that backend
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import MinLen
from rich.console import Console

from envs.errors import InputError, refused_in
from envs.forms import Form, read_form
from envs.hardware.network import Network
from envs.step.plans import BandwidthAllocation
from experiments.config.targets import build_as
from experiments.config.yaml_files import yaml_document
from experiments.execution.namespaces import Framing
from experiments.papers.enforcement.hosts import Host, HostNic, Hosts, server_plans
from experiments.papers.enforcement.scripts import Backend, enforcement_files
from experiments.reporting.tables import console_table
from experiments.run.artifacts import write_text
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance, file_hash
from experiments.step.plan_file import read_bandwidth, read_kept_plan
from experiments.step.problem import ProblemConfig, order_rule_of

COLUMNS = ("server", "interface", "to", "plan (bytes/s)", "payload (bytes/s)", "queue (bit/s)")
SHOWN = ("plan", "hosts", "graph", "topology", "backend", "servers")
_LONGEST_NAME = 200  # characters; file systems take 255 in the name of a file


@dataclass(kw_only=True)
class EnforceConfig(ProblemConfig):
    """`conf/enforce.yaml`; groups are objects by `_target_`."""

    order: Any
    backend: Any
    plan: str  # a plan file with a section `bandwidth`
    hosts: str  # a file that says which machine each server is: its format stands above
    seed: int
    json: bool


def enforce(config: EnforceConfig, run: Run) -> Result:
    """Read the plan and the machines, write the files of every server."""
    backend = build_as(Backend, config.backend, "backend", "backend of a bandwidth plan")
    hosts = read_hosts(config.hosts)
    loaded = config.load()
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
    return Result(
        {
            "plan": config.plan,
            "hosts": config.hosts,
            "graph": problem.graph.name,
            "topology": problem.topology.name,
            "backend": run.choice("backend", config.backend),
            "servers": len({lane["server"] for lane in lanes}),
            "files": files,
            "lanes": lanes,
        },
        provenance,
        SHOWN,
    )


class _Nic(Form):
    interface: str
    address: str
    bridge: str | None = None


class _Server(Form):
    address: str
    nics: Annotated[dict[str | int, _Nic], MinLen(1)]


class _File(Form):
    mtu: int
    line_overhead: int
    servers: Annotated[dict[str | int, _Server], MinLen(1)]


def read_hosts(path: str) -> Hosts:
    """The machines that a YAML file describes.

    Raises:
        InputError: naming the file, the server or NIC, and the field that is wrong.
    """
    document = read_form(_File, yaml_document(path), path)
    hosts = []
    for name, server in document.servers.items():
        if len(str(name)) > _LONGEST_NAME:
            fault = f"{str(name)[:20]!r}... has more than {_LONGEST_NAME} characters"
            raise InputError(fault, file=path, field="servers")
        nics = {}
        for nic, given in server.nics.items():
            with refused_in(path, f"{name}, {nic}"):
                nics[str(nic)] = HostNic(**given.model_dump(exclude_unset=True))
        with refused_in(path, name):
            hosts.append(Host(str(name), server.address, nics))
    with refused_in(path):
        return Hosts(Framing(document.mtu, document.line_overhead), tuple(hosts))


def write_scripts(
    folder: Path,
    allocation: BandwidthAllocation,
    network: Network,
    hosts: Hosts,
    backend: Backend,
    provenance: Provenance,
    *,
    plan_file: str,
    hosts_file: str,
) -> list[str]:
    """Write the files of every server; their paths."""
    notes = [
        "",
        f"From {plan_file} and {hosts_file}.",
        f"Version {provenance.package_version}, commit {provenance.git_commit}; SHA-256:",
        *(f"  {name}: {digest}" for name, digest in provenance.inputs.items()),
    ]
    try:
        files = enforcement_files(allocation, network, hosts, backend, notes)
    except InputError as error:
        place = plan_file if error.field == "bandwidth" else hosts_file
        raise InputError(
            error.message, file=place, record=error.record, field=error.field
        ) from error
    for file in files:
        write_text(folder / file.name, file.text)
    return [str(folder / file.name) for file in files]


def lanes_of(
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


def print_lanes(console: Console, lanes: Sequence[dict[str, object]]) -> None:
    """The same on a console."""
    keys = ("server", "interface", "to", "rate", "payload_rate", "queue_bits_per_second")
    table = console_table("", COLUMNS)
    for lane in lanes:
        table.add_row(*(f"{v:.6g}" if isinstance(v := lane[k], float) else str(v) for k in keys))
    console.print(table)
