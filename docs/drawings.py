"""The picture of an entry: its environment, its plan of one step, or its schedule of one trace.

All planners are asked about the same small training step, all schedulers about the same 24 jobs.
What learns has no plan before it has been trained: its picture is a training curve, kept in
`docs/pictures`.
"""

from __future__ import annotations

import inspect
import io
import shlex
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np
from hydra.utils import get_object
from matplotlib.image import imread, imsave
from numpy.typing import NDArray

import meshwright as mw
from agents.cluster.shipped import SHIPPED
from docs.entries import Entry, minutes
from envs.graphs.storage import save_graph
from envs.joint import generator as four_servers
from envs.placement import generator as mixed_devices

CURVES = Path(__file__).with_name("pictures") / "curves.png"
BUDGET_S = 4.0  # of a search
STEPS, TOY_STEPS = 40, 3  # of an environment before it is drawn, or until its episode ends
STAGES = ("problem.layers=16", "problem.micro_batches=4", "problem.degrees=[2]")
TRACE = (
    "env=cluster", "pictures=true", "trace.format=synthetic", "trace.jobs=24", "trace.max_gpus=8",
    "cluster.nodes=4", "cluster.gpus_per_node=4", "cluster.nodes_per_rack=2",
    "cluster.gpu_types=[V100,P100]", "interference=analytic", "overheads.restart_s=20",
)  # fmt: skip


def draw(entry: Entry, path: Path) -> None:
    """Write the picture of `entry` to `path`, a PNG."""
    with TemporaryDirectory() as folder:
        agent, into, made = f"agent={entry.name}", f"hydra.run.dir={folder}/run", "run/gantt.png"
        if entry.kind == "environment":
            imsave(path, _frame(entry))
            return
        if entry.kind == "scheduler":
            learned = "agent.priority.path=" in entry.command
            folder_of = SHIPPED / "unknown_durations" / "durations"
            shipped = [f"agent.priority.path={folder_of}"] if learned else []
            mw.run("evaluate", agent, *TRACE, *shipped, into)
        elif entry.command.startswith("meshwright synchronise "):
            mw.run(*shlex.split(entry.command)[1:], "optimum=false", into)
            made = "run/trees.png"
        else:
            made = _planned(entry, folder, agent, into)
        shutil.move(f"{folder}/{made}", path)


def curve(entry: Entry) -> bytes:
    """A PNG: its panel of `curves.png`, which has one for each row of the table, in three columns.

    Axes are found by their lines, which are the only dark ones of nearly the length of all panels.
    """
    whole = imread(CURVES)[..., :3]
    dark = whole.max(axis=2) < 0.35
    bottoms, lefts = (_begins(dark.mean(axis=axis) > 0.75) for axis in (1, 0))
    row, column = divmod([*minutes()].index(entry.learned_name), len(lefts))
    pitch, margin = bottoms[1] - bottoms[0], lefts[0] * 5 // 6  # of its tick labels
    top, bottom = (bottoms[row] + pitch // 32 - high for high in (pitch * 31 // 32, 0))
    left = lefts[column] - margin if column else 0
    right = lefts[column + 1] - margin if column + 1 < len(lefts) else whole.shape[1]
    buffer = io.BytesIO()
    imsave(buffer, whole[top:bottom, left:right], format="png")
    return buffer.getvalue()


def _begins(there: NDArray[np.bool_]) -> list[int]:
    """Where runs of True begin."""
    return [int(x) for x in np.flatnonzero(there & ~np.roll(there, 1))]


def _planned(entry: Entry, folder: str, agent: str, into: str) -> str:
    """A picture in `folder` of what a planner finds for the example."""
    said = dict(word.partition("=")[::2] for word in shlex.split(entry.command))
    problem, graph = said.get("problem", "makespan"), f"{folder}/graph.json"
    on_planes = said["topology"] == "planes_4x1"  # where bandwidth is decided
    module = four_servers if on_planes else mixed_devices
    topology = "planes_4x1" if on_planes else "mixed_v100_p100"
    save_graph(module.default_generator()(np.random.default_rng(3)).problem.graph, graph)
    budget = f"budget_s={BUDGET_S}"
    words = (agent, f"graph={graph}", f"topology={topology}", f"problem={problem}")
    if problem == "pipeline":
        mw.run("plan", *words, *STAGES, budget, into)
        return "run/hybrid_plan.png"
    if problem == "shared":
        mw.plan(graph, topology, "contiguous_speed").save(f"{folder}/given.json")
        plan = mw.run("plan", *words, budget, into, f"problem.plans=[{folder}/given.json]")["plan"]
        drawn = f"hydra.run.dir={folder}/plot"
        mw.run("report", f"plan={plan}", *words[1:3], "communication=fair", drawn)
        return "plot/gantt.png"
    found = mw.plan(graph, topology, entry.name, problem=problem, budget_s=BUDGET_S)
    found.draw(f"{folder}/gantt.png")
    return "gantt.png"


def _frame(entry: Entry) -> Any:
    """(320, 640, 3) what the environment draws of itself after a few random allowed actions."""
    if entry.id in gym.registry:
        env: Any = gym.make(entry.id, render_mode="rgb_array").unwrapped
        env.action_space.seed(0)
    else:
        named = get_object(entry.target)
        make = named if inspect.isfunction(named) else entry.made  # a function makes a toy
        env = make(render_mode="rgb_array")
    rng, (seen, _) = np.random.default_rng(1), env.reset(seed=0)

    def action(space: Any, observation: Any) -> Any:
        if "action_mask" not in observation:
            return space.sample()
        rows = map(np.flatnonzero, np.atleast_2d(observation["action_mask"]))
        # the last action, which lets time pass, less often than the others
        drawn = np.array([row[rng.integers(max(1, len(row) - 1))] for row in rows])
        return drawn if observation["action_mask"].ndim == 2 else drawn[0]

    for _ in range(TOY_STEPS if entry.name.endswith("toy") else STEPS):
        if hasattr(env, "possible_agents"):
            after = env.step({one: action(env.action_space(one), seen[one]) for one in seen})
            seen, over = after[0], not env.agents
        else:
            seen, _, terminated, truncated, _ = env.step(action(env.action_space, seen))
            over = terminated or truncated
        if over:
            break
    return env.render()
