"""The machines behind the servers of a topology: a YAML file that a user writes.

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

from collections.abc import Collection, Mapping
from typing import Any

from agents.bandwidth.enforcement.framing import Framing
from agents.bandwidth.enforcement.hosts import Host, HostNic, Hosts
from envs.errors import InputError
from experiments.run.targets import yaml_document

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
