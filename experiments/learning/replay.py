"""Decide with an exported policy where what trained it cannot be imported.

    python -m experiments.learning.replay scheduler <checkpoint folder> <observations.npz>
    python -m experiments.learning.replay placer <checkpoint folder> <observations.npz>

Prints the decisions of every runtime as JSON, {"onnx": [...], ...}: the action on each of a
scheduler's observations, the tokens of a placer's plans for its only one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from models.export.checkpoint import (
    PT2_FILE,
    Decision,
    OnnxRuntime,
    SchedulerCheckpoint,
    load_checkpoint,
)
from models.layout import Observation

if TYPE_CHECKING:
    from models.step.decoding import Network

Stacked = Mapping[str, NDArray[Any]]  # every array of K observations

SCHEDULER, PLACER = "scheduler", "placer"
BARRED = {SCHEDULER: ("ray", "torch_geometric"), PLACER: ("ray", "torch_geometric", "torch")}
PLANS = 8  # of a placer, the first greedy


class Barrier(MetaPathFinder):
    """Refuses to import the packages that are barred."""

    def __init__(self, barred: Sequence[str]) -> None:
        self.barred = barred

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Nothing for any other package: the next finder is asked."""
        if fullname.partition(".")[0] in self.barred:
            raise ModuleNotFoundError(f"{fullname} is barred here", name=fullname)
        return None


class Pt2Runtime:
    """Runs `policy.pt2` of the folder that was just written: torch may unpickle what it reads."""

    def __init__(self, checkpoint: SchedulerCheckpoint) -> None:
        import torch

        self._torch = torch
        self._program = torch.export.load(checkpoint.folder / PT2_FILE).module()
        self._checkpoint = checkpoint

    def __call__(self, observation: Observation) -> Decision:
        """Logits and value."""
        arrays = self._checkpoint.arrays(observation)
        with self._torch.inference_mode():
            logits, value = self._program(*map(self._torch.from_numpy, arrays.values()))
        return logits.numpy(), float(value)


def of_scheduler(checkpoint: str, observations: Stacked) -> dict[str, list[int]]:
    """The most probable actions."""
    loaded, count = load_checkpoint(checkpoint), len(observations["action_mask"])
    found = {}
    for name, runtime in (("onnx", OnnxRuntime), ("pt2", Pt2Runtime)):
        run = runtime(loaded)
        found[name] = [
            int(run({key: array[index] for key, array in observations.items()})[0].argmax())
            for index in range(count)
        ]
    return found


def of_placer(checkpoint: str, observations: Stacked) -> dict[str, list[int]]:
    """The tokens of its plans, one after another."""
    from models.export.placer import OnnxPlacer

    network = OnnxPlacer(checkpoint)
    return {"onnx": tokens(network, network.sweeps, observations).tolist()}


def tokens(network: Network, sweeps: Sequence[str], observation: Stacked) -> NDArray[np.int64]:
    """Of `PLANS` plans for one problem, the first greedy, the others drawn."""
    from envs.placement.whole import STARTS
    from models.step.decoding import chunks, compose

    (chunk,) = chunks(observation)
    heat, problem = np.ones(PLANS), np.zeros(PLANS, np.int64)
    start = np.arange(PLANS) % STARTS
    heat[0] = 0.0
    encoded, random = network.encode(chunk.views), np.random.default_rng(0)
    stands = np.repeat(chunk.stands, PLANS, axis=0)
    found = compose(network, encoded, chunk.given, problem, start, stands, sweeps, heat, random)
    return found.actions.ravel()


def main(kind: str, checkpoint: str, observations: str) -> None:
    """Load the checkpoint behind the barrier and decide on every observation."""
    sys.meta_path.insert(0, Barrier(BARRED[kind]))
    with np.load(observations, allow_pickle=False) as archive:
        stacked = {name: archive[name] for name in archive.files}
    decide = of_placer if kind == PLACER else of_scheduler
    decisions = decide(checkpoint, stacked)
    loaded = [name for name in BARRED[kind] if name in sys.modules]
    if loaded:
        raise ImportError(f"{', '.join(loaded)} was imported behind the barrier")
    json.dump(decisions, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
