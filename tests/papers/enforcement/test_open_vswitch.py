"""Open vSwitch files, run against doubles of its programs: what they make, and that it all goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from open_vswitch_double import database
from recorded_shell import calls
from three_servers import LINK, backend_of, files, machines, network_of, rates

from envs.files import read_json
from envs.step.plans import BandwidthAllocation
from experiments.papers.enforcement.hosts import Hosts
from experiments.papers.enforcement.scripts import enforcement_files
from tests.refusal import refusal

NETWORK = network_of(LINK)
PLAN = {(0, 1): (750_000.5, 250_000.0), (0, 2): (200_000.0, 0.0)}
DOUBLE = Path(__file__).with_name("open_vswitch_double.py")


@pytest.fixture
def switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the doubles' state; the programs stand where `recorded_shell` runs."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("ovs-vsctl", "ovs-ofctl"):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {DOUBLE} "$0" "$@"\n')
        program.chmod(0o755)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(database()))
    monkeypatch.setenv("OVS_DOUBLE", str(state))
    return state


def state_after(switch: Path, *texts: str) -> dict[str, Any]:
    for text in texts:
        calls(switch.parent, text)
    found = read_json(switch)
    assert isinstance(found, dict)
    return found


def test_every_destination_gets_a_queue_on_every_port(switch: Path) -> None:
    found = state_after(switch, files("ovs", PLAN)["node0.apply.sh"])
    qos = found["QoS"][found["Port"]["nic0"]["qos"]]
    assert (qos["type"], qos["other-config:max-rate"]) == ("linux-htb", "8000000")
    queues = {key[7:]: found["Queue"][row] for key, row in qos.items() if key[:7] == "queues:"}
    wanted = {"0": 240_000, "2": 6_000_000, "3": 1_600_000}
    assert queues.keys() == wanted.keys()
    for number, rate in wanted.items():
        for key in ("min", "max"):
            assert queues[number][f"other-config:{key}-rate"] == str(rate)
        assert queues[number]["other-config:burst"] == str(8 * 65_536)
    assert sorted(found["flows"])[1:] == sorted(
        f"br{plane} cookie=0x4d57,priority=4000,in_port=LOCAL,ip,nw_dst={address},"
        f"actions=set_queue:{number},normal"
        for plane, number in ((0, 2), (0, 3), (1, 2))
        for address in (f"10.255.0.{number}", f"10.0.0.{number}", f"10.1.0.{number}")
    )


def test_applied_twice_is_as_applied_once_and_the_clean_up_leaves_nothing(switch: Path) -> None:
    apply, clean = files("ovs", PLAN)["node0.apply.sh"], files("ovs", PLAN)["node0.clean.sh"]
    before = {**read_json(switch), "made": 0}
    once = state_after(switch, apply)
    twice = state_after(switch, apply)
    for table in ("QoS", "Queue", "flows"):
        assert len(once[table]) == len(twice[table])
    assert {**state_after(switch, clean), "made": 0} == before
    assert {**state_after(switch, clean), "made": 0} == before


def test_queues_of_a_port_that_somebody_else_set_stay(switch: Path) -> None:
    texts = files("ovs", PLAN)
    found = state_after(switch, texts["node0.apply.sh"])
    found["Port"]["nic0"]["qos"] = "of another"
    switch.write_text(json.dumps(found))
    after = state_after(switch, texts["node0.clean.sh"])
    assert after["Port"]["nic0"]["qos"] == "of another"
    assert after["QoS"] == {}


def test_the_userspace_datapath_is_refused(switch: Path) -> None:
    text = files("ovs", PLAN)["node0.apply.sh"]
    assert "userspace datapath" in text.split("set -eu")[0]
    state = database()
    state["Bridge"]["br1"]["datapath_type"] = "netdev"
    switch.write_text(json.dumps(state))
    calls(switch.parent, text, expected=1)
    assert read_json(switch) == state


def test_routes_lead_through_the_bridges(switch: Path) -> None:
    made = calls(switch.parent, files("ovs", PLAN)["node0.apply.sh"])
    devices = {words[words.index("dev") + 1] for words in made if "dev" in words}
    assert devices == {"br0", "br1"}


def test_a_nic_on_no_bridge_is_refused() -> None:
    hosts = machines()
    nics = {name: replace(nic, bridge=None) for name, nic in hosts.hosts[1].nics.items()}
    bare = Hosts(
        hosts.framing, (hosts.hosts[0], replace(hosts.hosts[1], nics=nics), hosts.hosts[2])
    )
    allocation = BandwidthAllocation(rates(NETWORK, PLAN))
    with refusal("field 'bridge': nic0 is on no Open vSwitch bridge"):
        enforcement_files(allocation, NETWORK, bare, backend_of("ovs"))


def test_a_shell_reads_every_file() -> None:
    for text in files("ovs", PLAN).values():
        subprocess.run(["sh", "-n"], input=text, text=True, check=True, env={**os.environ})
