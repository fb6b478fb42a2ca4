"""Decide with an exported checkpoint where neither Ray nor PyTorch Geometric can be imported.

    python -m experiments.learning.replay <checkpoint folder> <observations.npz>

Prints the decisions of every runtime as JSON: {"onnx": [...], "pt2": [...]}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np

BARRED = ("ray", "torch_geometric")


class Barrier(MetaPathFinder):
    """Refuses to import the barred packages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Nothing for any other package: the next finder is asked."""
        if fullname.partition(".")[0] in BARRED:
            raise ModuleNotFoundError(f"{fullname} is barred here", name=fullname)
        return None


def main(checkpoint: str, observations: str) -> None:
    """Load the checkpoint behind the barrier and decide on every observation."""
    sys.meta_path.insert(0, Barrier())
    from agents.placement.learned import LearnedAgent
    from models.export.checkpoint import OnnxRuntime, Pt2Runtime

    with np.load(observations, allow_pickle=False) as archive:
        stacked = {name: archive[name] for name in archive.files}
    count = len(stacked["action_mask"])
    decisions = {}
    for name, runtime in (("onnx", OnnxRuntime), ("pt2", Pt2Runtime)):
        agent = LearnedAgent(checkpoint, runtime)
        decisions[name] = [
            int(agent.act({key: array[index] for key, array in stacked.items()}))
            for index in range(count)
        ]
    loaded = [name for name in BARRED if name in sys.modules]
    if loaded:
        raise ImportError(f"{', '.join(loaded)} was imported behind the barrier")
    json.dump(decisions, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
