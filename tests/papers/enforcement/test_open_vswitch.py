"""Open vSwitch files, run against doubles of its programs: what they make, and that it all goes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from open_vswitch_double import database
from recorded_shell import calls
from three_servers import NETWORK, files, machines, plans, rates

from envs.files import read_json
from experiments.papers.enforcement.hosts import Hosts
from tests.refusal import refusal

pytestmark = pytest.mark.slow
TEXTS = files("ovs", plans(rates(NETWORK, {(0, 1): (750_000.5, 250_000.0), (0, 2): (2e5, 0.0)})))
APPLY, CLEAN = TEXTS["node0.apply.sh"], TEXTS["node0.clean.sh"]
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


def state_after(switch: Path, text: str) -> dict[str, Any]:
    calls(switch.parent, text)
    return {**read_json(switch), "made": 0}


def test_every_destination_gets_a_queue_on_every_port(switch: Path) -> None:
    found = state_after(switch, APPLY)
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
    once, twice = state_after(switch, APPLY), state_after(switch, APPLY)
    for table in ("QoS", "Queue", "flows"):
        assert len(once[table]) == len(twice[table])
    for _ in range(2):
        assert state_after(switch, CLEAN) == database()


def test_queues_of_a_port_that_another_program_set_stay(switch: Path) -> None:
    found = state_after(switch, APPLY)
    found["Port"]["nic0"]["qos"] = "of another"
    switch.write_text(json.dumps(found))
    after = state_after(switch, CLEAN)
    assert after["Port"]["nic0"]["qos"] == "of another"
    assert after["QoS"] == {}


def test_the_userspace_datapath_is_refused(switch: Path) -> None:
    assert "userspace datapath" in APPLY.split("set -eu")[0]
    state = database()
    state["Bridge"]["br1"]["datapath_type"] = "netdev"
    switch.write_text(json.dumps(state))
    calls(switch.parent, APPLY, expected=1)
    assert read_json(switch) == state


def test_routes_lead_through_the_bridges(switch: Path) -> None:
    made = calls(switch.parent, APPLY)
    devices = {words[words.index("dev") + 1] for words in made if "dev" in words}
    assert devices == {"br0", "br1"}


def test_a_nic_on_no_bridge_is_refused() -> None:
    document = machines().model_dump()
    document["servers"]["node1"]["nics"]["server1/nic0"]["bridge"] = None
    own = plans(np.zeros(12), hosts=Hosts.model_validate(document))
    with refusal("field 'bridge': nic0 is on no Open vSwitch bridge"):
        files("ovs", own)


def test_a_shell_reads_every_file() -> None:
    for text in TEXTS.values():
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)
