"""Forests against rings, double trees and hierarchical rings, all of them played."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from omegaconf import OmegaConf

from agents.synchronisation.classical import DoubleTree, Hierarchical, Ring
from agents.synchronisation.forest import Forest
from agents.synchronisation.ways import Synchroniser
from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.plan import SynchronisationProblem
from envs.synchronisation.playing import play
from envs.synchronisation.published import uneven
from experiments.config.command_words import CONFIG_MODULE
from experiments.config.targets import build_as

OTHERS: dict[str, Synchroniser] = {
    "ring": Ring(), "double_tree": DoubleTree(), "hierarchical": Hierarchical(),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Seconds on one network."""

    network: str
    participants: int
    seconds: dict[str, float]  # of every planner that has a plan
    busiest: dict[str, float]  # of its busiest link alone

    @property
    def gain(self) -> float:
        """The best of the others over the forest."""
        return (
            min(x for name, x in self.seconds.items() if name != "forest") / self.seconds["forest"]
        )

    def document(self) -> dict[str, object]:
        return {"network": self.network, "participants": self.participants, "gain": self.gain,
                "time_s": self.seconds, "busiest_link_s": self.busiest}  # fmt: skip


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


def row_of(network: LinkGraph, size: float) -> Row:
    """An all-reduce of `size` bytes by every planner."""
    problem = SynchronisationProblem(network, size)
    seconds, busiest = {}, {}
    for name, planner in {"forest": Forest(), **OTHERS}.items():
        plan = planner.solve(problem).solution
        if plan is not None:
            seconds[name] = play(problem, plan).seconds
            busiest[name] = plan.busiest_seconds(problem)
    return Row(network.name, len(network.participants), seconds, busiest)


def study(random: int, size: float) -> dict[str, object]:
    """The published networks, and random uneven ones with seeds 0, 1, ...: gains of the forest."""
    known = [row_of(network, size) for network in published_networks()]
    drawn = [row_of(uneven(seed, f"uneven_{seed}"), size) for seed in range(random)]
    gains = [row.gain for row in drawn]
    best = max((*known, *drawn), key=lambda row: row.gain)
    found = np.quantile(gains, (0.0, 0.1, 0.5, 0.9, 1.0)).tolist() if gains else []
    quantiles = zip(("least", "p10", "median", "p90", "largest"), found, strict=False)
    return {
        "networks": len(known) + len(drawn),
        "slower": sum(row.gain < 1.0 for row in (*known, *drawn)),
        **{f"{name}_gain": value for name, value in quantiles},
        "gain": best.gain,
        "gain_on": best.network,
        "rows": [row.document() for row in (*known, *drawn)],
    }
