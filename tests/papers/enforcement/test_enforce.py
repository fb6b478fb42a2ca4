"""`export hosts=`: a plan file and a hosts file become shell files; faults are one line."""

from __future__ import annotations

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
from experiments.command_line import main_of
from tests.envs.topologies import topology_named
from tests.experiments.layered_step import layered_step
from tests.experiments.refusals import run_refused

Document = dict[str, Any]
GIVEN = ["plan=plan.json", "hosts=hosts.yaml", "graph=graph.npz"]
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
main = main_of("export")
pytestmark = pytest.mark.slow


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
    (work / "hosts.yaml").write_text(yaml.safe_dump(HOSTS, sort_keys=False))
    return work


@pytest.mark.parametrize("backend", ["tc", "ovs"])
def test_every_server_gets_two_files_a_shell_can_read(work: Path, backend: str) -> None:
    texts = []
    for folder in ("one", "two"):
        assert main([*GIVEN, f"backend={backend}", f"hydra.run.dir={folder}"]) == 0
        texts.append([path.read_text() for path in sorted((work / folder).glob("*.sh"))])
    assert len(texts[0]) == 8
    assert texts[0] == texts[1]
    found = read_json(work / "two/result.json")
    assert [Path(path).name for path in found["files"]] == [
        f"node-{s}.{way}.sh" for s in range(4) for way in ("apply", "clean")
    ]
    for path in found["files"]:
        subprocess.run(["sh", "-n", path], check=True)
        assert f"plan: {found['provenance']['inputs_sha256']['plan']}" in Path(path).read_text()
    assert (found["servers"], found["backend"], len(found["lanes"])) == (4, backend, 24)
    lane = found["lanes"][0]
    third = 3.125e9 / 3
    assert (lane["server"], lane["interface"], lane["to"]) == ("node-0", "eth0", "node-1")
    assert lane["rate"] == pytest.approx(third)
    assert lane["payload_rate"] == pytest.approx(third * 1448 / 1538)
    bits = int(third * 1514 / 1538) * 8
    assert lane["queue_bits_per_second"] == bits
    assert {"tc": f"rate {bits}bit", "ovs": f"max-rate={bits}"}[backend] in texts[1][0]


def drop_nic(hosts: Document, _: Document) -> None:
    del hosts["servers"]["node-1"]["nics"]["server1/nic1"]


def swap_nics(hosts: Document, _: Document) -> None:
    one, two = (hosts["servers"][f"node-{s}"]["nics"] for s in (1, 2))
    one["server2/nic0"], two["server1/nic0"] = two.pop("server2/nic0"), one.pop("server1/nic0")


def drop_bridge(hosts: Document, _: Document) -> None:
    del hosts["servers"]["node-2"]["nics"]["server2/nic1"]["bridge"]


FIRST = "server0/nic0 -> plane0 -> server1/nic0"
Edit = Callable[[Document, Document], object]  # of the hosts and of the plan
FAULTS: dict[str, tuple[Edit, list[str]]] = {
    "NIC missing": (drop_nic, ["hosts.yaml", "server1/nic1", "'nics'"]),
    "NICs of two servers swapped": (swap_nics, ["hosts.yaml", "'nics'", "not a NIC of the server"]),
    "no bridge": (drop_bridge, ["hosts.yaml", "'bridge'", "eth1"]),
    "no bandwidth": (
        lambda _, p: (p.pop("bandwidth"), p.update(schema_version=1)),
        ["plan.json", "'bandwidth'", "missing"],
    ),
    "too much": (
        lambda _, p: p["bandwidth"].update({FIRST: 3.125e9}),
        ["plan.json", "server0/nic0", "too many"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_file_is_one_line(
    work: Path, fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    edit, words = FAULTS[fault]
    hosts, plan = yaml.safe_load((work / "hosts.yaml").read_text()), read_json(work / "plan.json")
    edit(hosts, plan)
    (work / "hosts.yaml").write_text(yaml.safe_dump(hosts))
    (work / "plan.json").write_text(json.dumps(plan))
    run_refused("enforce", [*GIVEN, "backend=ovs"], words, work, capfd)


def test_a_fault_in_the_backend_is_one_line(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_refused("enforce", [*GIVEN, "backend.burst_s=-1"], ["backend.burst_s'", "-1"], work, capfd)
    other = ["backend=agents.placement.list_planners.Heft", "+backend.groups=[4]"]
    run_refused("enforce", [*GIVEN, *other], ["'backend'"], work, capfd)
