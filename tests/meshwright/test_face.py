"""The public face: what it loads, plans and replays, and how it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import envs
import meshwright as mw
from agents.placement.baselines import SingleDevice
from agents.solver import Budget, Result
from agents.step.problems import StepPlanning
from envs.cluster.workload.trace import Trace
from envs.graphs.synthetic import synthetic_training_graph
from envs.step.plans import Plan
from tests.paths import ROOT

START = (ROOT / "docs/start.md").read_text()
GRAPH = synthetic_training_graph(np.random.default_rng(0), 2, 1, 2)
TWO = mw.topology([mw.Server("T4"), mw.Server("T4")], network="10Gbps")


class OneDevice:
    """A planner of a user's own."""

    solves = (StepPlanning,)

    def solve(self, problem: StepPlanning, budget: Budget, start: object = ()) -> Result[Plan]:
        return SingleDevice().solve(problem, budget)


def jobs(count: int, seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    submit = np.sort(rng.integers(0, 40 * count, count))
    return Trace.of("jobs", submit, rng.integers(1, 999, count), rng.choice([1, 2, 4], count))


def refusal(call: Any) -> str:
    with pytest.raises(mw.InputError) as refused:
        call()
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_every_public_name_is_there_and_nothing_else() -> None:
    assert all(getattr(mw, name) is not None for name in mw.__all__)
    assert dir(mw) == sorted(mw.__all__)
    with pytest.raises(AttributeError, match="no attribute 'plann'"):
        mw.plann  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.slow
def test_importing_is_cheap_and_planning_and_replaying_need_no_torch() -> None:
    script = (
        "import sys, meshwright as mw; print(len(set(sys.modules) & {'numpy', 'hydra'}));"
        "mw.plan, mw.replay, mw.read_trace; "
        "print(sorted({'torch', 'ray', 'torch_geometric', 'onnx'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["0", "[]"], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "import meshwright, gymnasium",
        "import gymnasium, meshwright",
        "import meshwright, envs, gymnasium",
    ],
)
def test_gymnasium_knows_the_environments_and_loads_no_kernels(imports: str) -> None:
    script = (
        f"{imports}\nimport sys; print('numba' in sys.modules);"
        "print(*(name for name in gymnasium.registry if name.startswith('meshwright/')));"
        "gymnasium.make('meshwright/ClusterToy-v0').reset(seed=0)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded, names = done.stdout.splitlines()
    assert loaded == "False"
    pages = [(ROOT / page).read_text() for page in ("README.md", "docs/start.md")]
    for name in names.replace("meshwright/", "").split():
        assert all(name in page for page in pages), name


def test_multi_agent_environments_are_made_by_the_names_of_the_page() -> None:
    (table,) = re.findall(r"^\| PettingZoo.*?\n\n", START, re.MULTILINE | re.DOTALL)
    names = re.findall(r"`(\w+-v0)`", table.partition("|---")[2])
    assert {f"meshwright/{name}" for name in names} == set(envs.PARALLEL)
    for name in names:
        made: Any = mw.make(name)
        assert made.metadata["name"] == f"meshwright/{name.replace('Toy', '')}"


def test_an_environment_is_about_a_step_of_ones_own() -> None:
    env: Any = mw.make("Placement-v0", generator=mw.one_problem(GRAPH, TWO, groups=5)).unwrapped
    env.reset(seed=0)
    assert env.instance.problem.graph is GRAPH
    assert env.instance.problem.topology is TWO
    assert env.instance.fusion.num_groups <= 5
    assert "groups" in refusal(lambda: mw.one_problem(GRAPH, TWO, groups=0))


def test_graphs_traces_and_clusters_are_printed_in_a_line() -> None:
    assert repr(jobs(60, 1)).startswith("Trace jobs: 60 jobs in ")
    assert (
        repr(mw.cluster(nodes=2, gpus_per_node=4))
        == "Cluster 2x4: 2 nodes in 1 racks, 8 GPUs (V100)"
    )
    assert "10 operators, 10 tensors, 2 micro-batches" in repr(GRAPH)
    assert repr(TWO) == "Topology own: 2 T4 in 2 servers, 32 GiB"
    assert max(len(repr(one)) for one in (jobs(9999, 1), GRAPH, TWO)) < 160


def test_own_servers_are_a_topology() -> None:
    assert [device.name for device in TWO.devices] == ["server0/T4/0", "server1/T4/0"]
    assert float(TWO.bandwidth[0, 1]) == 10e9 / 8
    alone = mw.topology(mw.Server("V100-16GB", 4, nvlink="50GB/s"))
    assert float(alone.bandwidth[0, 3]) == 50e9
    assert mw.topology("t4_pcie").num_devices == 4
    assert "unknown device kind 'T5'" in refusal(lambda: mw.Server("T5"))
    assert "did you mean V100-16GB" in refusal(lambda: mw.Server("V100-16G"))
    assert "shipped: unknown_durations, any_step" in refusal(lambda: mw.load("typo"))
    assert "neither a name" in refusal(lambda: mw.topology(3))  # type: ignore[arg-type]
    assert "topology=nowhere" in refusal(lambda: mw.topology("nowhere"))
    assert "give it to plan" in refusal(lambda: mw.topology("from_graph"))


@pytest.mark.slow
def test_a_plan_is_judged_saved_and_drawn(tmp_path: Path) -> None:
    found = mw.plan(GRAPH, TWO, OneDevice())
    assert found.feasible
    assert found.step_time_s == found.best_single_device_s
    assert found.gap is not None
    assert found.gap >= 0
    assert set(found.placement) == set(GRAPH.op_names)
    assert list(found.peak_memory_bytes) == ["server0/T4/0", "server1/T4/0"]
    for part in ("OneDevice", "above the bound", "best single device", "1.00x", "server1/T4/0"):
        assert part in str(found)
    document = json.loads(found.save(tmp_path / "plan.json").read_text())
    assert document["placement"] == found.placement
    assert found.draw(tmp_path / "step").read_bytes()[:4] == b"\x89PNG"
    assert ".png alone" in refusal(lambda: found.draw("step.pdf"))
    assert "cannot be written" in refusal(lambda: found.save(tmp_path / "plan.json" / "x"))


def test_a_named_planner_takes_its_arguments_and_the_defaults_of_conf() -> None:
    found = mw.plan(GRAPH, TWO, "contiguous", groups=2)
    assert found.planner == "contiguous"
    assert found.seed == 0
    message = refusal(lambda: mw.plan(GRAPH, TWO, "heft", group=2))
    assert (
        message
        == "unknown config key 'agent.group' (did you mean groups? known under agent: groups)"
    )
    assert "agent=heftt" in refusal(lambda: mw.plan(GRAPH, TWO, "heftt"))
    assert "built already" in refusal(lambda: mw.plan(GRAPH, TWO, OneDevice(), depth=3))
    assert "is no graph" in refusal(lambda: mw.plan(3, TWO, "heft"))  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_own_order_of_what_is_left_is_srtf_and_of_durations_sjf() -> None:
    @mw.order(knows="durations", preemptive=False)
    def shortest(now: Any) -> Any:
        return now.duration_s

    @mw.order(knows="durations")
    def least_left(now: Any) -> Any:
        return now.remaining_s

    found = mw.replay(jobs(60, 1), mw.cluster(nodes=2, gpus_per_node=4), ["sjf", shortest])
    assert found["sjf"]["mean_jct_s"] == found["shortest"]["mean_jct_s"]
    assert found["sjf"]["mean_jct_s"] != mw.replay(
        jobs(60, 1), mw.cluster(nodes=2, gpus_per_node=4), "fifo"
    )["fifo"]["mean_jct_s"]  # fmt: skip
    pair = mw.replay(jobs(60, 2), mw.cluster(nodes=2, gpus_per_node=4), ["srtf", least_left])
    assert pair["srtf"]["sum_jct_s"] == pair["least_left"]["sum_jct_s"]
    assert pair["least_left"]["preemptions"] != 0


@pytest.mark.slow
def test_an_order_sees_what_it_says_it_knows() -> None:
    seen = {}

    def by_waiting(now: Any) -> Any:
        seen[now.now_s] = (now.waited_s + now.executed_s, now.now_s - now.submit_s, now.user)
        assert (now.waiting != now.running).all()
        return -now.waited_s

    def peeks(now: Any) -> Any:
        return now.remaining_s

    def wrong(now: Any) -> Any:
        return 3.0

    trace, nodes = jobs(20, 3), mw.cluster(nodes=1, gpus_per_node=4)
    assert mw.replay(trace, nodes, by_waiting).best == "by_waiting"
    for stayed, present, user in seen.values():
        np.testing.assert_allclose(stayed, present)
        assert set(user) <= {""}
    assert "peeks: reads remaining_s" in refusal(lambda: mw.replay(trace, nodes, peeks))
    assert "not a number for each" in refusal(lambda: mw.replay(trace, nodes, wrong))


@pytest.mark.slow
def test_a_comparison_is_a_table_in_every_form(tmp_path: Path) -> None:
    trace, nodes = jobs(30, 4), mw.cluster(nodes=2, gpus_per_node=4)
    found = mw.replay(trace, nodes, {"first": "fifo", "short": "srtf"}, restart_s=30)
    means = [float(str(row["mean_jct_s"])) for row in found]
    assert means == sorted(means)
    assert found.to_polars()["policy"].to_list() == [row["policy"] for row in found.rows]
    assert found.best in str(found).splitlines()[3]
    assert found.draw(tmp_path / "jct.png").stat().st_size > 0
    assert ".png alone" in refusal(lambda: found.draw("jct.pdf"))
    assert "policies=srtff" in refusal(lambda: mw.replay(trace, nodes, "srtff"))
    path: Any = "jobs.csv"
    assert "'jobs.csv' is no Trace" in refusal(lambda: mw.replay(path, nodes))
    assert "'jobs.csv' is no Cluster" in refusal(lambda: mw.replay(trace, path))
    assert "stands twice" in refusal(lambda: mw.replay(trace, nodes, ["fifo", "fifo"]))
    assert "neither a name" in refusal(lambda: mw.replay(trace, nodes, [3]))  # type: ignore[list-item]
    big = Trace.of("big", [0], [5], [64])
    assert "big" in refusal(lambda: mw.replay(big, nodes, "fifo"))


def test_make_finds_environments_with_and_without_the_namespace() -> None:
    for name in ("ClusterToy-v0", "meshwright/ClusterToy-v0"):
        assert mw.make(name).spec.id == "meshwright/ClusterToy-v0"  # type: ignore[union-attr]


@pytest.mark.slow
def test_an_app_answers_with_its_result_and_refuses_as_an_error(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("at,ran,n\n0,60,1\n10,5,4\n")
    words = (
        "env=cluster",
        "agent=srtf",
        f"trace.path={tmp_path / 'jobs.csv'}",
        "trace.columns={submit: at, duration: ran, gpus: n}",
        f"hydra.run.dir={tmp_path / 'run'}",
    )
    found = mw.run("evaluate", *words)
    assert found["jobs"] == 2
    assert found["run_folder"] == str(tmp_path / "run")
    assert "holds a run already" in refusal(lambda: mw.run("evaluate", *words))
    assert "unknown config key 'agnt'" in refusal(lambda: mw.run("evaluate", "agnt=heft"))
    assert "'-m' is for the command" in refusal(lambda: mw.run("evaluate", "-m", "seed=1,2"))
    assert "'evaluat' is not one of" in refusal(lambda: mw.run("evaluat"))


@pytest.mark.slow
def test_stages_are_planned_by_the_command_that_a_refusal_names() -> None:
    with pytest.raises(mw.InputError, match=r"mw\.run\('plan', 'graph=gpt2', .*'problem=pipeline'"):
        mw.plan("gpt2", "dgx1", "dapple", problem="pipeline")
