"""Frames, hosts files, and a plan seen from one server."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from three_servers import LINK, NETWORK, PLANES, SERVERS, machines, plans

from envs.errors import InputError
from envs.hardware.builders import leaf_spine
from envs.hardware.servers import PcieServer
from envs.step.plans import BandwidthAllocation
from experiments.execution.namespaces import Framing
from experiments.papers.enforcement.command import read_hosts
from experiments.papers.enforcement.hosts import INTERFACE, HostNic, Hosts
from tests.proof import fuzzing
from tests.refusal import refusal
from tests.strength import trials

Document = dict[str, Any]


def test_payload_of_full_segments() -> None:
    """1448 of 1514 bytes of a usual MTU; on Ethernet 24 more, which the kernel does not count."""
    assert Framing(mtu=1500, line_overhead=0).kernel_rate(1514.0) == 1514.0
    assert Framing(mtu=1500, line_overhead=0).payload_rate(1514.0) == pytest.approx(1448.0)
    assert Framing(mtu=9000, line_overhead=24).kernel_rate(9038.0) == pytest.approx(9014.0)
    assert Framing(mtu=9000, line_overhead=24).payload_rate(9038.0) == pytest.approx(8948.0)
    bits = {0.0: 0, 0.99: 0, 1.0: 8, 1.99: 8, 3.125e9: 25_000_000_000}  # whole bytes/s
    assert [Framing(1500, 0).kernel_bits(rate) for rate in bits] == [*bits.values()]


@given(st.lists(st.floats(0, LINK / 2), min_size=12, max_size=12))
def test_every_channel_leaves_its_server_once(values: list[float]) -> None:
    found = plans(np.array(values))
    assert [plan.name for plan in found] == ["node0", "node1", "node2"]
    pipes = np.zeros((SERVERS, SERVERS))
    for source, plan in enumerate(found):
        assert [up.name for up in plan.uplinks] == [f"server{source}/nic{p}" for p in range(PLANES)]
        for plane, up in enumerate(plan.uplinks):
            assert up.bits == 8 * LINK
            for number, channel in up.channels.items():
                pipes[source, number - 1] += channel.rate
                assert channel.gateway.address == f"10.{plane}.0.{number}"
                assert channel.destination.address == f"10.255.0.{number}"
    assert np.allclose(pipes, BandwidthAllocation(np.array(values)).pipes(NETWORK))


def test_two_servers_on_one_machine_are_refused() -> None:
    document = machines().model_dump()
    servers = document["servers"]
    for name, nic in servers.pop("node1")["nics"].items():
        more = {"interface": f"b{nic['interface']}", "address": nic["address"]}
        servers["node0"]["nics"][name] = more
    with refusal("record node0: field 'nics'"):
        plans(np.zeros(12), hosts=Hosts.model_validate(document))


def test_channels_that_only_switches_distinguish_are_refused() -> None:
    link = {"medium": "cable", "bandwidth": LINK, "latency": "5us"}
    server = PcieServer("V100-16GB", 1, link, 1, 1)
    spines = leaf_spine("spines", server, 2, 1, 2, 1.0, link).network
    with refusal(r"spine0.*spine1.* leave the same NIC"):
        plans(np.zeros(4), spines)


@given(st.from_regex(INTERFACE, fullmatch=True))
def test_a_shell_takes_an_interface_for_one_word(name: str) -> None:
    assert shlex.quote(HostNic(interface=name, address="10.0.0.1").interface) == name


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
    document["servers"][7] = document["servers"].pop("node-1")
    hosts = read_hosts(written(tmp_path, document))
    assert hosts.framing == Framing(9000, 24)
    assert [*hosts.servers] == ["node-0", "7"]
    first = hosts.servers["node-0"]
    assert first.addresses == ("10.255.0.1", "10.0.0.1", "10.1.0.1")
    nic = HostNic(interface="eth1", address="10.1.0.1", bridge="br1")
    assert first.nics["server0/nic1"] == nic


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(yaml.safe_dump(good()) + "mtu: 1500\n")
    with refusal(r"hosts.yaml: record line \d+: field 'mtu': stands twice"):
        read_hosts(str(path))


FILE, SERVERS_OF_FILE, SERVER, NIC = range(4)
SECOND: Any = object()  # the second server
FAULTS: dict[str, tuple[int, str, object, list[str]]] = {
    "tiny mtu": (FILE, "mtu", 100, ["'mtu'", "between 576 and 65535"]),
    "mtu of a text": (FILE, "mtu", "1500", ["'mtu'", "'1500' is not a"]),
    "negative overhead": (FILE, "line_overhead", -1, ["'line_overhead'", "-1"]),
    "unknown key": (FILE, "mut", 3, ["'mut'", "known: mtu"]),
    "no servers": (FILE, "servers", {}, ["'servers'"]),
    "slash": (SERVERS_OF_FILE, "../n", SECOND, ["record ../n", "'servers'", "name of a machine"]),
    "long name": (SERVERS_OF_FILE, "n" * 201, SECOND, ["'servers'", "200 characters at most"]),
    "words": (SERVER, "address", "here", ["node-1", "'here' is not an IPv4 address"]),
    "IPv6": (SERVER, "address", "fe80::1", ["node-1", "fe80::1", "IPv4"]),
    "loopback": (SERVER, "address", "127.0.0.1", ["node-1", "127.0.0.1"]),
    "no NICs": (SERVER, "nics", None, ["node-1", "'nics'"]),
    "own address": (SERVER, "address", "10.0.0.2", ["node-1", "10.0.0.2", "'node-1'"]),
    "shell": (NIC, "interface", "a;reboot", ["node-1.nics.server1/nic0", "'a;reboot' is not a"]),
    "long interface": (NIC, "interface", "e" * 16, ["server1/nic0", "e" * 16]),
    "number": (NIC, "interface", 7, ["server1/nic0", "'interface'", "7"]),
    "same interface": (NIC, "interface", "eth1", ["node-1", "eth1'", "twice"]),
    "same address": (NIC, "address", "10.0.0.1", ["node-1", "10.0.0.1", "'node-0'"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_names_its_place(tmp_path: Path, fault: str) -> None:
    level, key, value, words = FAULTS[fault]
    document = good()
    servers = document["servers"]
    nic = servers["node-1"]["nics"]["server1/nic0"]
    at = (document, servers, servers["node-1"], nic)[level]
    at[key] = servers["node-1"] if value is SECOND else value
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
