"""Forests against rings, double trees and hierarchical rings, all of them played."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from agents.synchronisation.classical import DoubleTree, Hierarchical, Ring
from agents.synchronisation.forest import Forest
from agents.synchronisation.ways import Synchroniser
from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.playing import play
from envs.synchronisation.problem import SynchronisationProblem
from envs.synchronisation.published import uneven
from experiments.config.command_words import CONFIG_MODULE
from experiments.config.targets import build_as

OTHERS: dict[str, Synchroniser] = {
    "ring": Ring(), "double_tree": DoubleTree(), "hierarchical": Hierarchical(),
}  # fmt: skip


def published_networks() -> list[LinkGraph]:
    """Those of `conf/topology/published`."""
    folder = files(CONFIG_MODULE).joinpath("topology", "published")
    found = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        node = OmegaConf.to_container(OmegaConf.create(file.read_text("utf-8")))
        if isinstance(node, dict) and "seed" not in node:
            options = {str(key): value for key, value in node.items()}
            found.append(build_as(LinkGraph, options, "topology", "network"))
    return found


def row_of(network: LinkGraph, size: float) -> dict[str, Any]:
    """An all-reduce of `size` bytes by every planner that has a plan, in seconds.

    `gain` is the time of the best of the others over that of the forest.
    """
    problem = SynchronisationProblem(network, size)
    seconds, busiest = {}, {}
    for name, planner in {"forest": Forest(), **OTHERS}.items():
        plan = planner.solve(problem).solution
        if plan is not None:
            seconds[name] = play(problem, plan).seconds
            busiest[name] = plan.busiest_seconds(problem)
    others = [x for name, x in seconds.items() if name != "forest"]
    return {
        "network": network.name, "participants": len(network.participants),
        "gain": min(others) / seconds["forest"], "time_s": seconds, "busiest_link_s": busiest,
    }  # fmt: skip


def study(random: int, size: float) -> dict[str, object]:
    """The published networks, and random uneven ones with seeds 0, 1, ...: gains of the forest."""
    drawn = [row_of(uneven(seed, f"uneven_{seed}"), size) for seed in range(random)]
    rows = [*(row_of(network, size) for network in published_networks()), *drawn]
    best, found = max(rows, key=lambda row: row["gain"]), []
    if drawn:
        found = np.quantile([row["gain"] for row in drawn], (0.0, 0.1, 0.5, 0.9, 1.0)).tolist()
    quantiles = zip(("least", "p10", "median", "p90", "largest"), found, strict=False)
    return {
        "networks": len(rows),
        "slower": sum(row["gain"] < 1.0 for row in rows),
        **{f"{name}_gain": value for name, value in quantiles},
        "gain": best["gain"],
        "gain_on": best["network"],
        "rows": rows,
    }
