"""Hosts files: what is read, and that every fault names its place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from envs.errors import InputError
from experiments.papers.enforcement.command import read_hosts
from experiments.papers.enforcement.hosts import HostNic
from tests.proof import fuzzing
from tests.refusal import refusal
from tests.strength import trials

Document = dict[str, Any]


def good() -> Document:
    """Two machines with two NICs each."""
    servers = {
        f"node-{s}": {
            "address": f"10.255.0.{s + 1}",
            "nics": {
                f"server{s}/nic{p}": {"interface": f"eth{p}", "address": f"10.{p}.0.{s + 1}"}
                for p in range(2)
            },
        }
        for s in range(2)
    }
    return {"mtu": 9000, "line_overhead": 24, "servers": servers}


def written(folder: Path, document: object) -> str:
    path = folder / "hosts.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return str(path)


def test_a_hosts_file_is_read(tmp_path: Path) -> None:
    document = good()
    document["servers"]["node-0"]["nics"]["server0/nic1"]["bridge"] = "br1"
    hosts = read_hosts(written(tmp_path, document))
    assert (hosts.framing.mtu, hosts.framing.line_overhead) == (9000, 24)
    assert [host.name for host in hosts.hosts] == ["node-0", "node-1"]
    assert hosts.hosts[0].addresses == ("10.255.0.1", "10.0.0.1", "10.1.0.1")
    assert hosts.hosts[0].nics["server0/nic1"] == HostNic("eth1", "10.1.0.1", "br1")
    assert hosts.of_nic("server1/nic0") == hosts.hosts[1]


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(yaml.safe_dump(good()) + "mtu: 1500\n")
    with refusal(r"hosts.yaml: record line \d+: field 'mtu': stands twice"):
        read_hosts(str(path))


def edit_server(document: Document, key: str, value: object) -> None:
    document["servers"]["node-1"][key] = value


def edit_nic(document: Document, key: str, value: object) -> None:
    document["servers"]["node-1"]["nics"]["server1/nic0"][key] = value


FAULTY_HOSTS: dict[str, tuple[Callable[[Document], object], list[str]]] = {
    "no mtu": (lambda d: d.pop("mtu"), ["'mtu'", "is missing"]),
    "mtu of a text": (lambda d: d.update(mtu="1500"), ["'mtu'", "'1500' is not a"]),
    "tiny mtu": (lambda d: d.update(mtu=100), ["'mtu'", "between 576 and 65535"]),
    "negative overhead": (lambda d: d.update(line_overhead=-1), ["'line_overhead'", "-1"]),
    "unknown key": (lambda d: d.update(mut=3), ["'mut'", "known: mtu"]),
    "no servers": (lambda d: d.update(servers={}), ["'servers'"]),
    "servers in a list": (lambda d: d.update(servers=[1]), ["'servers'"]),
    "server of a text": (lambda d: d["servers"].update(n="x"), ["record n", "'x' is not"]),
    "name with a slash": (
        lambda d: d["servers"].update({"../n": d["servers"].pop("node-0")}), ["../n", "'servers'"],
    ),
    "name too long for a file": (
        lambda d: d["servers"].update({"n" * 201: d["servers"].pop("node-0")}),
        ["'servers'", "more than 200 characters"],
    ),
    "unknown server key": (lambda d: edit_server(d, "rack", 1), ["node-1", "'rack'"]),
    "address in words": (lambda d: edit_server(d, "address", "here"), ["node-1", "IPv4"]),
    "address of a number": (lambda d: edit_server(d, "address", 10.1), ["node-1", "10.1"]),
    "IPv6": (lambda d: edit_server(d, "address", "fe80::1"), ["node-1", "fe80::1", "IPv4"]),
    "loopback": (lambda d: edit_server(d, "address", "127.0.0.1"), ["node-1", "127.0.0.1"]),
    "no NICs": (lambda d: edit_server(d, "nics", None), ["node-1", "'nics'"]),
    "no interface": (
        lambda d: d["servers"]["node-1"]["nics"]["server1/nic0"].pop("interface"),
        ["node-1.nics.server1/nic0", "'interface'", "is missing"],
    ),
    "shell in an interface": (
        lambda d: edit_nic(d, "interface", "eth0;reboot"), ["server1/nic0", "eth0;reboot"],
    ),
    "long interface": (lambda d: edit_nic(d, "interface", "e" * 16), ["server1/nic0", "e" * 16]),
    "number as interface": (lambda d: edit_nic(d, "interface", 7), ["server1/nic0", "7"]),
    "interface twice": (lambda d: edit_nic(d, "interface", "eth1"), ["node-1", "'eth1'", "twice"]),
    "address twice": (
        lambda d: edit_nic(d, "address", "10.0.0.1"), ["node-1", "10.0.0.1", "'node-0'"],
    ),
    "address of its own twice": (
        lambda d: edit_server(d, "address", "10.0.0.2"), ["node-1", "10.0.0.2", "'node-1'"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTY_HOSTS)
def test_a_fault_names_its_place(tmp_path: Path, fault: str) -> None:
    edit, words = FAULTY_HOSTS[fault]
    document = good()
    edit(document)
    path = written(tmp_path, document)
    with refusal() as caught:
        read_hosts(path)
    for word in (path, *words):
        assert word in str(caught.value)


def test_a_damaged_file_is_read_or_refused(tmp_path: Path) -> None:
    """Every seed is a case of its own."""
    path = tmp_path / "hosts.yaml"
    sound = yaml.safe_dump(good()).encode()
    for number in range(trials(400, 20)):
        path.write_bytes(fuzzing.damaged_yaml(sound, Random(f"hosts {number}")))
        with suppress(InputError):
            read_hosts(str(path))
