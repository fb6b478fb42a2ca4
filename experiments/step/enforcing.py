"""A bandwidth plan on real machines: the hosts file that a user writes, the scripts that it gives.

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

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from agents.bandwidth.enforcement.hosts import Framing, Host, HostNic, Hosts, server_plans
from agents.bandwidth.enforcement.scripts import Backend, enforcement_files
from envs.errors import InputError
from envs.hardware.network import Network
from envs.step.plans import BandwidthAllocation
from experiments.run.artifacts import write_text
from experiments.run.provenance import Provenance
from experiments.run.yaml_files import yaml_document

COLUMNS = ("server", "interface", "to", "plan (bytes/s)", "payload (bytes/s)", "queue (bit/s)")
_FILE = ("mtu", "line_overhead", "servers")
_SERVER = ("address", "nics")
_NIC = ("interface", "address")
_LONGEST_NAME = 200  # characters; file systems take 255 in the name of a file


def read_hosts(path: str) -> Hosts:
    """The machines that a YAML file describes.

    Raises:
        InputError: naming the file, the server or NIC, and the field that is wrong.
    """
    document = _mapping(yaml_document(path), path, None, "hosts file", _FILE)
    framing = _made(
        path, None, Framing,
        _integer(document, "mtu", path), _integer(document, "line_overhead", path),
    )  # fmt: skip
    servers = document["servers"]
    if not isinstance(servers, dict) or not servers:
        raise InputError("is not a mapping of servers", file=path, field="servers")
    hosts = tuple(_host(str(name), node, path) for name, node in servers.items())
    found = _made(path, None, Hosts, framing, hosts)
    assert isinstance(found, Hosts)
    return found


def _host(name: str, node: object, path: str) -> Host:
    if len(name) > _LONGEST_NAME:
        fault = f"{name[:20]!r}... has {len(name)} characters, more than {_LONGEST_NAME}"
        raise InputError(fault, file=path, field="servers")
    server = _mapping(node, path, name, "server", _SERVER)
    if not isinstance(server["nics"], dict) or not server["nics"]:
        raise InputError("is not a mapping of NICs", file=path, record=name, field="nics")
    nics = {}
    for nic, description in server["nics"].items():
        record = f"{name}, {nic}"
        given = _mapping(description, path, record, "NIC", _NIC, ("bridge",))
        for key, value in given.items():
            if not isinstance(value, str):
                raise InputError(f"{value!r} is not a text", file=path, record=record, field=key)
        nics[str(nic)] = _made(path, record, HostNic, **given)
    if not isinstance(server["address"], str):
        fault = f"{server['address']!r} is not a text"
        raise InputError(fault, file=path, record=name, field="address")
    host = _made(path, name, Host, name, server["address"], nics)
    assert isinstance(host, Host)
    return host


def _mapping(
    node: object,
    path: str,
    record: str | None,
    thing: str,
    needed: Collection[str],
    possible: Collection[str] = (),
) -> Mapping[str, Any]:
    """`node`, with all `needed` keys and none beside those and the `possible` ones."""
    if not isinstance(node, dict):
        raise InputError(f"is no {thing}: not a mapping", file=path, record=record)
    known = (*needed, *possible)
    for key in node:
        if key not in known:
            fault = f"is unknown (known: {', '.join(known)})"
            raise InputError(fault, file=path, record=record, field=str(key))
    for key in needed:
        if key not in node:
            raise InputError("is missing", file=path, record=record, field=key)
    return node


def _integer(document: Mapping[str, Any], key: str, path: str) -> int:
    value = document[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{value!r} is not an integer", file=path, field=key)
    return value


def _made(path: str, record: str | None, kind: Any, *args: object, **named: object) -> Any:
    """An object of `kind`; what it refuses is told with the file and the record."""
    try:
        return kind(*args, **named)
    except InputError as error:
        raise InputError(
            error.message, file=path, record=error.record or record, field=error.field
        ) from error


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
    table = Table(box=SIMPLE)
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if number >= 3 else "left")
    for lane in lanes:
        table.add_row(*(f"{v:.6g}" if isinstance(v := lane[k], float) else str(v) for k in keys))
    console.print(table)
