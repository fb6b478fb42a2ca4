"""A bandwidth plan on real machines: scripts for tc or Open vSwitch, two for each server.

meshwright export plan=plan.json hosts=hosts.yaml graph=bert_base topology=planes_4x1
meshwright export plan=plan.json hosts=hosts.yaml graph=bert_base topology=planes_4x1 \\
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

from dataclasses import dataclass
from typing import Any

from envs.errors import InputError, refused_in
from envs.forms import read_form
from experiments.config.targets import build_as
from experiments.config.yaml_files import yaml_document
from experiments.papers.enforcement.backends import Backend
from experiments.papers.enforcement.hosts import Hosts, server_plans
from experiments.reporting.tables import Table
from experiments.run.artifacts import write_text
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash
from experiments.step.plan_file import read_bandwidth, read_kept_plan
from experiments.step.problem import ProblemConfig, order_rule_of

COLUMNS = {
    "server": "{server}", "interface": "{interface}", "to": "{to}",
    "plan (bytes/s)": "{rate:.6g}", "payload (bytes/s)": "{payload_rate:.6g}",
    "queue (bit/s)": "{queue_bits_per_second}",
}  # fmt: skip
SHOWN = ("plan", "hosts", "graph", "topology", "backend", "servers")


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
    problem, network = loaded.problem, loaded.problem.topology.network
    read_kept_plan(config.plan, problem, order_rule_of(config.order))
    allocation = read_bandwidth(config.plan, network)
    if allocation is None:
        raise InputError("is missing: the plan allocates none", file=config.plan, field="bandwidth")
    provenance = loaded.stamp_on(run.provenance).with_inputs(
        plan=file_hash(config.plan), hosts=file_hash(config.hosts)
    )
    notes = [
        "",
        f"From {config.plan} and {config.hosts}.",
        f"Version {provenance.package_version}, commit {provenance.git_commit}; SHA-256:",
        *(f"  {name}: {digest}" for name, digest in provenance.inputs.items()),
    ]
    try:
        plans = server_plans(allocation, network, hosts)
        made = [backend.script(plan).files(plan.name, notes) for plan in plans]
    except InputError as error:
        place = config.plan if error.field == "bandwidth" else config.hosts
        raise InputError(
            error.message, file=place, record=error.record, field=error.field
        ) from error
    files = {run.folder / name: text for both in made for name, text in both.items()}
    for path, text in files.items():
        write_text(path, text)
    channels = [
        {
            "server": plan.name,
            "interface": up.nic.interface,
            "to": channel.to,
            "channel": channel.name,
            "rate": channel.rate,
            "payload_rate": hosts.framing.payload_rate(channel.rate),
            "queue_bits_per_second": channel.bits,
        }
        for plan in plans
        for up in plan.uplinks
        for channel in up.channels.values()
    ]
    if not config.json:
        run.console.print(Table.of("", COLUMNS, channels).rich(run.console.width))
    return Result(
        {
            "plan": config.plan,
            "hosts": config.hosts,
            "graph": problem.graph.name,
            "topology": problem.topology.name,
            "backend": run.choice("backend", config.backend),
            "servers": len(plans),
            "files": [*map(str, files)],
            "lanes": channels,
        },
        provenance,
        SHOWN,
    )


def read_hosts(path: str) -> Hosts:
    """The machines that a YAML file describes.

    Raises:
        InputError: naming the file, the server or NIC, and the field that is wrong.
    """
    with refused_in(path):
        return read_form(Hosts, yaml_document(path), path)
