"""Plans of finished runs, read from their files and judged again by the problem itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agents.step.problems import Verdict
from envs.step.order import OneFOneB
from experiments.config.targets import build_as
from experiments.run.saved_run import saved_nodes
from experiments.step.objectives import Objective
from experiments.step.plan_file import read_plan
from experiments.step.problem import load_problem

PLAN_FILE = "plan.json"


def judged_again(folders: Sequence[Path]) -> list[Verdict | None]:
    """What is said of the plan in every run folder of one problem; None where there is no plan.

    Graph, devices and costs are made anew from the config of the first run with a plan.

    Raises:
        InputError: a file is no plan of this problem.
    """
    written = [folder for folder in folders if (folder / PLAN_FILE).is_file()]
    if not written:
        return [None] * len(folders)
    names = ("problem", "env", "graph", "topology", "cost")
    problem, *groups = saved_nodes(written[0], names).values()
    objective = build_as(Objective, problem, "problem", "objective of a plan")
    loaded = load_problem(*groups)
    task = objective.of(loaded.problem)
    return [
        task.judge(read_plan(folder / PLAN_FILE, loaded.problem, OneFOneB()))
        if folder in written
        else None
        for folder in folders
    ]
