"""`experiments.enforce`: a plan file and a hosts file become shell files; faults are one line."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from envs.files import read_json
from envs.graphs.storage import save_graph
from envs.step.allocated import uniform_allocation
from experiments.command_line import run_job
from tests.envs.topologies import topology_named
from tests.experiments.layered_step import layered_step

Document = dict[str, Any]
HOSTS: Document = {
    "mtu": 1500,
    "line_overhead": 24,
    "servers": {
        f"node-{s}": {
            "address": f"10.255.0.{s + 1}",
            "nics": {
                f"server{s}/nic{p}": {
                    "interface": f"eth{p}", "address": f"10.{p}.0.{s + 1}", "bridge": f"br{p}",
                }
                for p in range(2)
            },
        }
        for s in range(4)
    },
}  # fmt: skip


@pytest.fixture
def work(work: Path) -> Path:
    """A graph, a plan with uniform bandwidth and the machines; the working directory."""
    graph = layered_step(3, 2)
    save_graph(graph, work / "graph.npz")
    network = topology_named("planes_4x1").network
    rate = uniform_allocation(network).rate.tolist()
    plan = {
        "kind": "meshwright.plan",
        "schema_version": 2,
        "placement": dict.fromkeys(graph.op_names, "server0/V100-16GB/0"),
        "bandwidth": dict(zip(network.channel_names, rate, strict=True)),
    }
    (work / "plan.json").write_text(json.dumps(plan))
    (work / "hosts.yaml").write_text(yaml.safe_dump(HOSTS))
    return work


GIVEN = ["plan=plan.json", "hosts=hosts.yaml", "graph=graph.npz"]


@pytest.mark.parametrize("backend", ["tc", "ovs"])
def test_every_server_gets_two_files_a_shell_can_read(work: Path, backend: str) -> None:
    code = run_job("enforce", [*GIVEN, f"backend={backend}", "hydra.run.dir=run"])
    assert code == 0
    found = read_json(work / "run/result.json")
    assert [Path(path).name for path in found["files"]] == [
        f"node-{s}.{way}.sh" for s in range(4) for way in ("apply", "clean")
    ]
    for path in found["files"]:
        subprocess.run(["sh", "-n", path], check=True)
        assert f"plan: {found['provenance']['inputs_sha256']['plan']}" in Path(path).read_text()
    assert found["servers"] == 4
    assert len(found["lanes"]) == 24
    lane = found["lanes"][0]
    third = 3.125e9 / 3
    assert (lane["server"], lane["interface"], lane["to"]) == ("node-0", "eth0", "node-1")
    assert lane["rate"] == pytest.approx(third)
    assert lane["payload_rate"] == pytest.approx(third * 1448 / 1538)
    bits = int(third * 1514 / 1538) * 8
    assert lane["queue_bits_per_second"] == bits
    text = (work / "run/node-0.apply.sh").read_text()
    assert f"rate {bits}bit" in text if backend == "tc" else f"max-rate={bits}" in text


def test_the_files_are_the_same_every_time(work: Path) -> None:
    texts = []
    for folder in ("one", "two"):
        run_job("enforce", [*GIVEN, f"hydra.run.dir={folder}"])
        texts.append([path.read_text() for path in sorted((work / folder).glob("*.sh"))])
    assert len(texts[0]) == 8
    assert texts[0] == texts[1]


def drop_nic(document: Document) -> None:
    del document["servers"]["node-1"]["nics"]["server1/nic1"]


def swap_nics(document: Document) -> None:
    nics = [document["servers"][f"node-{s}"]["nics"] for s in (1, 2)]
    nics[0]["server2/nic0"], nics[1]["server1/nic0"] = (
        nics[0].pop("server1/nic0"), nics[1].pop("server2/nic0"),
    )  # fmt: skip


FAULTY_HOSTS: dict[str, tuple[Callable[[Document], object], list[str]]] = {
    "no mtu": (lambda d: d.pop("mtu"), ["'mtu'", "is missing"]),
    "NIC missing": (drop_nic, ["server1/nic1", "'nics'"]),
    "NICs of two servers swapped": (swap_nics, ["'nics'", "not a NIC of the server"]),
}


@pytest.mark.parametrize("fault", FAULTY_HOSTS)
def test_a_fault_in_the_hosts_file_is_one_line(
    work: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit, words = FAULTY_HOSTS[fault]
    document = copy.deepcopy(HOSTS)
    edit(document)
    (work / "hosts.yaml").write_text(yaml.safe_dump(document))
    line = refused(work, GIVEN, capsys)
    assert "hosts.yaml" in line
    for word in words:
        assert word in line


FIRST = "server0/nic0 -> plane0 -> server1/nic0"
FAULTY_PLANS: dict[str, tuple[Callable[[Document], object], list[str]]] = {
    "no bandwidth": (
        lambda d: (d.pop("bandwidth"), d.update(schema_version=1)),
        ["'bandwidth'", "missing"],
    ),
    "too much": (lambda d: d["bandwidth"].update({FIRST: 3.125e9}), ["server0/nic0", "too many"]),
    "another topology": (lambda d: d.update(topology="t"), ["'topology'", "planes_4x1"]),
}


@pytest.mark.parametrize("fault", FAULTY_PLANS)
def test_a_fault_in_the_plan_is_one_line(
    work: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit, words = FAULTY_PLANS[fault]
    document = read_json(work / "plan.json")
    edit(document)
    (work / "plan.json").write_text(json.dumps(document))
    line = refused(work, GIVEN, capsys)
    assert "plan.json" in line
    for word in words:
        assert word in line


def make_unbridged(work: Path) -> None:
    document = copy.deepcopy(HOSTS)
    del document["servers"]["node-2"]["nics"]["server2/nic1"]["bridge"]
    (work / "hosts.yaml").write_text(yaml.safe_dump(document))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hosts=hosts.yaml"], ["'plan' is missing"]),
        (["plan=plan.json"], ["'hosts' is missing"]),
        (["plan=plan.json", "hosts=nowhere.yaml"], ["nowhere.yaml", "No such file"]),
        (["plan=nowhere.json", "hosts=hosts.yaml"], ["nowhere.json", "No such file"]),
        (["plan=hosts.yaml", "hosts=hosts.yaml"], ["hosts.yaml", "JSON"]),
        (["plan=plan.json", "hosts=plan.json"], ["plan.json", "'kind'", "known: mtu"]),
        ([*GIVEN, "topology=mixed_v100_p100"], ["plan.json", "unknown channel"]),
        ([*GIVEN, "backend=nope"], ["backend=nope", "ovs", "tc"]),
        ([*GIVEN, "backend.burst_s=-1"], ["backend.burst_s'", "-1"]),
        (
            [*GIVEN, "backend=agents.placement.list_planners.Heft", "+backend.groups=[4]"],
            ["'backend'"],
        ),
        ([*GIVEN, "backend=ovs"], ["hosts.yaml", "'bridge'", "eth1"]),
    ],
)
def test_a_fault_in_the_command_is_one_line(
    work: Path, arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    make_unbridged(work)
    line = refused(work, [*arguments, *(["graph=graph.npz"] if len(arguments) < 3 else [])], capsys)
    for word in words:
        assert word in line


def refused(work: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that `arguments` are refused with; nothing new lies in the folder."""
    before = {path for path in work.rglob("*") if path.is_file()}
    capsys.readouterr()
    code = run_job("enforce", arguments)
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert len(err.strip().splitlines()) == 1
    assert {path for path in work.rglob("*") if path.is_file()} == before
    return err
