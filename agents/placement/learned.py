"""A learned scheduler: decides with an exported checkpoint; needs neither Ray nor PyG."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.export.checkpoint import OnnxRuntime, Runtime, SchedulerCheckpoint, load_checkpoint


class LearnedAgent:
    """Takes the most probable action of an exported policy.

    Guarantees:
        None; the mask keeps parameters, gradients and optimizer state within the memory.

    Source:
        Placement by reinforcement learning: Mirhoseini et al., "Device Placement Optimization with
        Reinforcement Learning", ICML 2017. The policy is our own.

    Args:
        checkpoint: the checkpoint folder.
        runtime: runs it; `models.export.checkpoint.Pt2Runtime` only for checkpoints you trust.

    Raises:
        InputError: the folder is no checkpoint, or a file in it is damaged or foreign.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        runtime: Callable[[SchedulerCheckpoint], Runtime] = OnnxRuntime,
    ) -> None:
        self.checkpoint = load_checkpoint(checkpoint)
        self._run = runtime(self.checkpoint)

    def logits(self, observation: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """(D,) masked logits."""
        return self._run(observation)[0]

    def act(self, observation: Mapping[str, NDArray[Any]]) -> np.int64:
        """The device of the current group; of equal logits the first device.

        Raises:
            InputError: the observation is not the one the policy was trained on.
        """
        return np.int64(self.logits(observation).argmax())
