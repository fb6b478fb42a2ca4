"""The picture of an entry: its environment, its plan of one step, or its schedule of one trace.

All planners are asked about the same small training step, all schedulers about the same 24 jobs.
What learns has no plan before it has been trained: its picture is a training curve, kept in
`docs/pictures`.
"""

from __future__ import annotations

from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from hydra import compose, initialize_config_module
from matplotlib.image import imsave
from numpy.typing import NDArray
from omegaconf import OmegaConf

from agents.cluster.lower_bound import completion_bound
from agents.cluster.shipped import SHIPPED
from agents.solver import Budget
from agents.step.problems import BandwidthPlanning, JointPlanning, StepPlanning, Verdict
from envs.cluster.allocation.parallel_env import AllocationParallelEnv
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.simulation.cluster_metrics import measure
from envs.cluster.workload.trace import Trace
from envs.hybrid.problem import HybridProblem
from envs.joint import toy as four_servers
from envs.joint.env import JointEnv
from envs.placement import generator as mixed_devices
from envs.step.problem import StepProblem
from envs.synchronisation.link_graph import VertexSpec, graph_of
from envs.synchronisation.playing import seconds_of
from envs.synchronisation.problem import SynchronisationProblem
from experiments.catalogue.entries import Entry, Kind, entries, gymnasium_id
from experiments.cluster.problem import ClusterProblem, built_policy
from experiments.pictures.cluster_gantt import GanttWindow, draw_cluster_gantt
from experiments.pictures.step import draw_gantt, draw_stages
from experiments.pictures.style import LIMIT, in_words
from experiments.pictures.synchronisation import draw_trees
from experiments.run.declared import CONFIG_MODULE
from experiments.run.targets import build
from experiments.step.hybrid import Pipeline, ask_hybrid
from experiments.step.problem import communication_of
from experiments.step.tasks import BandwidthTask, JointTask, SharedTask, StepTask

BUDGET = Budget(4.0)  # of a search
JOBS, NODES, GPUS = 24, 4, 4  # of the trace; of the cluster, and of each node
STEPS, TOY_STEPS = 40, 3  # of an environment before it is drawn, or until its episode ends
DOTS_PER_INCH = 110


class NoPictureError(Exception):
    """An entry whose picture is a training curve, or that has none to show."""


def draw(entry: Entry, path: Path) -> None:
    """Write the picture of `entry` to `path`, a PNG.

    Raises:
        NoPictureError: what it decides is learned first, by a command that the page has.
    """
    if entry.kind == "environment":
        imsave(path, frame_of(entry))
    elif entry.kind == "scheduler":
        _schedule(entry).savefig(path, dpi=DOTS_PER_INCH)
    elif entry.kind == "planner" and "???" not in entry.text:
        _plan(entry).savefig(path, dpi=DOTS_PER_INCH)
    else:
        raise NoPictureError(entry.name)


def frame_of(entry: Entry) -> NDArray[np.uint8]:
    """(320, 640, 3) what the environment draws of itself after a few random allowed actions."""
    rng = np.random.default_rng(1)
    env, steps = _environment(entry), TOY_STEPS if "_toy" in entry.name else STEPS
    if isinstance(env, JointEnv | ClusterParallelEnv | AllocationParallelEnv):
        seen, _ = env.reset(seed=0)
        for _ in range(steps):
            actions = {name: int(_allowed(one["action_mask"], rng)) for name, one in seen.items()}
            after = env.step(actions)
            if not env.agents:
                break
            seen = after[0]
    else:
        observation, _ = env.reset(seed=0)
        for _ in range(steps):
            masks = observation.get("action_mask")
            action: Any = env.action_space.sample()
            if masks is not None:
                rows = [_allowed(row, rng) for row in np.atleast_2d(masks)]
                action = np.array(rows) if masks.ndim == 2 else rows[0]
            observation, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                break
    frame: NDArray[np.uint8] = env.render()
    return frame


def _allowed(mask: NDArray[np.int8], rng: np.random.Generator) -> np.int64:
    """An allowed action, the last one, which lets time pass, less often than the others."""
    actions = np.flatnonzero(mask)
    return np.int64(actions[rng.integers(max(1, len(actions) - 1))])


def _environment(entry: Entry) -> Any:
    """The registered environment, with its own random instances; the toy where it is one."""
    name = gymnasium_id(entry)
    if name in gym.registry:
        env = gym.make(name, render_mode="rgb_array").unwrapped
        env.action_space.seed(0)
        return env
    make: Any = entry.made
    if not entry.name.endswith("_toy"):
        make = getattr(make, "__self__", make)  # the class, where the option names a method
    return make(render_mode="rgb_array")


def _plan(entry: Entry) -> Any:
    """A Gantt chart of the plan that a planner makes of the example."""
    agent = _built(entry.name)
    if agent.solves[0] is HybridProblem:
        return _stages(entry, agent)
    if agent.solves[0] is SynchronisationProblem:
        return _trees(entry, agent)
    task = _task(agent)
    agent.solve(task, Budget(0.2), task.start)  # compiles
    found = agent.solve(task, BUDGET, task.start)
    assert found.solution is not None, found.reason
    return _gantt(entry, task.judge(found.solution), max(task.bound(), found.bound))


def _stages(entry: Entry, agent: Any) -> Any:
    """The step of a plan of stages."""
    asked = Pipeline(
        layers=16, micro_batches=4, degrees=[2], synchronisation=None, aggregation=False
    )
    planned = ask_hybrid(agent, asked.of(example_step(network=False)), BUDGET)
    assert planned.step is not None, planned.found.reason
    seconds = planned.step.step_time * 1e3
    bound = planned.problem.bound() * 1e3
    title = (
        f"{entry.name}: a step of four micro-batches takes {seconds:.2f} ms, {bound:.2f} at best"
    )
    return draw_stages(planned.step, title)


def _trees(entry: Entry, agent: Any) -> Any:
    """The trees of a plan for 100 MB on the example network."""
    problem = example_network()
    found = agent.solve(problem)
    assert found.solution is not None, found.reason
    seconds = seconds_of(problem, found.solution)
    title = f"{entry.name}: 100 MB are summed in {seconds * 1e3:.2f} ms"
    return draw_trees(problem, found.solution, title)


@cache
def example_network() -> SynchronisationProblem:
    """Two servers with four devices, joined pairwise and by a switch that can add."""
    devices = [f"server{s}/{d}" for s in range(2) for d in range(4)]
    vertices = [VertexSpec(name, True, True, False) for name in devices]
    vertices.append(VertexSpec("switch", False, True, True))
    links = [(a, b, 25e9, 2e-6) for a, b in permutations(devices, 2) if a[:7] == b[:7]]
    links += [(x, y, 12.5e9, 5e-6) for a in devices for x, y in ((a, "switch"), ("switch", a))]
    return SynchronisationProblem(graph_of("two servers", vertices, links), 100e6)


def _gantt(entry: Entry, verdict: Verdict, bound: float) -> Any:
    evaluation = verdict.evaluation
    assert evaluation is not None
    title = (
        f"{entry.name}: one step takes {verdict.objective * 1e3:.2f} ms, "
        f"no plan less than {bound * 1e3:.2f} ms (dotted)"
    )
    figure = draw_gantt(evaluation.problem, evaluation.timeline, title)
    figure.axes[0].axvline(bound * 1e3, **LIMIT)
    return figure


def _task(agent: Any) -> Any:
    """What a planner is asked: the example that its kind is made for."""
    if StepPlanning in agent.solves:
        return StepTask(example_step(network=False))
    problem = example_step(network=True)
    plan = _built("contiguous_speed").solve(StepPlanning(problem), BUDGET).solution
    if BandwidthPlanning in agent.solves:
        return BandwidthTask(problem, plan)
    if JointPlanning in agent.solves:
        return JointTask(problem)
    fair = communication_of(_option("communication", "fair"))
    return SharedTask(problem, (plan,), communication=fair)


@cache
def example_step(network: bool) -> StepProblem:
    """A random training graph of a few layers on two V100 and two P100, or on four servers."""
    if network:
        return four_servers.default_generator()(np.random.default_rng(3)).problem
    return mixed_devices.default_generator()(np.random.default_rng(3)).problem


def _schedule(entry: Entry) -> Any:
    """Who held which GPU when, under a scheduler."""
    problem = example_cluster()
    policy = built_policy(_option("agent", entry.name), "agent")
    schedule = problem.replay(policy, keep_runs=True)
    mean = measure(schedule, problem.cluster.num_gpus).jct.mean
    bound = completion_bound(problem.trace, problem.cluster, problem.rates).mean_jct_s
    title = (
        f"{entry.name}: jobs take {in_words(mean)} on average from submission to end, "
        f"no schedule less than {in_words(bound)}"
    )
    end = float((problem.trace.submit_s + schedule.jct).max())
    window = GanttWindow(0.0, end, tuple(range(NODES)))
    return draw_cluster_gantt(problem.cluster, schedule, window, title)


@cache
def example_cluster() -> ClusterProblem:
    """24 jobs in two hours on a rack of two nodes of four V100, one of P100; a stop costs 20 s."""
    rng = np.random.default_rng(5)
    gangs = rng.choice([1, 1, 2, 2, 4, 8], JOBS)
    minutes = np.round(np.exp(rng.normal(3.4, 1.0, JOBS)))
    trace = Trace.of(
        "24 jobs", np.sort(rng.integers(0, 7200, JOBS)), 60 * minutes.astype(np.int64), gangs
    )
    cluster = {
        "_target_": "envs.cluster.nodes.Cluster.uniform",
        "nodes": NODES,
        "gpus_per_node": GPUS,
        "nodes_per_rack": 2,
        "gpu_types": ["V100", "P100"],
    }
    overheads = {
        "_target_": "envs.cluster.simulation.cluster_state.Overheads",
        "restart_s": 20.0,
        "checkpoint_s": 0.0,
    }
    return ClusterProblem.of(trace, cluster, _option("interference", "analytic"), overheads, None)


def _built(name: str) -> Any:
    return build(_option("agent", name), "agent")


@cache
def _option(group: str, name: str) -> dict[str, Any]:
    """An option as an app composes it; a learned order is the shipped one."""
    of_cluster = group == "interference" or (group == "agent" and _kind(name) == "scheduler")
    app = "evaluate_cluster" if of_cluster else "evaluate"
    with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
        config = compose(app, overrides=[f"{group}={name}", "seed=0"])
    if "priority" in config[group] and OmegaConf.is_missing(config[group].priority, "path"):
        config[group].priority.path = str(SHIPPED / "unknown_durations" / "durations")
    node: Any = OmegaConf.to_container(config[group], resolve=True)
    return dict(node)


def _kind(name: str) -> Kind:
    return next(e.kind for e in entries() if e.name == name and e.kind != "environment")
