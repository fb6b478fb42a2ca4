"""Any policy of single actions as a folder: arrays of an observation in, an action out.

policy.onnx           the observation's arrays in, inputs of the distribution of actions out
weights.safetensors, spec.json, config.yaml, README.md   as beside a placer's
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.errors import InputError
from models.artifacts import atomic_folder, check_folder, read_checked_spec
from models.export.checkpoint import (
    CARD_FILE,
    CONFIG_FILE,
    ONNX_FILE,
    WEIGHTS_FILE,
    ModelCard,
    onnx_session,
)
from models.export.placer import write_beside

if TYPE_CHECKING:
    from models.architecture import Policy

KIND, VERSION = "meshwright.policy", 1
LISTED = (ONNX_FILE, WEIGHTS_FILE, CONFIG_FILE, CARD_FILE)


class OnnxPolicy:
    """The most probable actions of an exported policy.

    Raises:
        InputError: the folder is not one of these, or a file in it is damaged or foreign.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        check_folder(folder)
        spec = read_checked_spec(folder, KIND, VERSION, LISTED)
        self.observation: dict[str, dict[str, Any]] = spec["observation"]
        self.action: dict[str, Any] = spec["action"]
        self._program = onnx_session(folder / ONNX_FILE, tuple(self.observation))

    def decide(self, observation: Mapping[str, NDArray[Any]]) -> Any:
        """An action for one observation.

        Raises:
            InputError: an array is missing, or has another shape.
        """
        given = {}
        for name, about in self.observation.items():
            if name not in observation:
                raise InputError("is missing", record=name)
            try:
                array = np.asarray(observation[name], about["dtype"])
            except (ValueError, TypeError) as error:
                raise InputError(f"is no array of numbers ({error})", record=name) from error
            if list(array.shape) != about["shape"]:
                raise InputError(f"is not of shape {about['shape']}", record=name)
            given[name] = array[None]
        (inputs,) = self._program.run(["inputs"], given)
        if "parts" in self.action:
            cuts = np.cumsum(self.action["parts"])[:-1]
            return np.array([part.argmax() for part in np.split(inputs[0], cuts)])
        if "shape" in self.action:
            mean = inputs[0, : inputs.shape[1] // 2].reshape(self.action["shape"])
            return np.clip(mean, self.action["low"], self.action["high"])
        return int(inputs[0].argmax())


def export_policy(
    policy: Policy,
    observation_space: spaces.Dict,
    action_space: spaces.Space[Any],
    folder: Path,
    card: ModelCard,
) -> Path:
    """Write the folder, whole or not at all; one already there is replaced."""
    import torch
    from torch import Tensor, nn

    from models.export.programs import program_of, write_onnx

    names = tuple(observation_space.spaces)

    class Inputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = policy

        def forward(self, *arrays: Tensor) -> Tensor:
            return self.policy.decide(dict(zip(names, arrays, strict=True)))[0]

    boxes = observation_space.spaces.items()
    given = tuple(
        torch.ones((2, *(box.shape or ())), dtype=getattr(torch, str(box.dtype)))
        for _, box in boxes
    )
    batch = torch.export.Dim("B")
    with atomic_folder(folder) as temporary:
        program = program_of(Inputs().eval(), given, (tuple({0: batch} for _ in given),))
        write_onnx(program, names, ("inputs",), temporary / ONNX_FILE)
        observation = {
            name: {"shape": list(box.shape or ()), "dtype": str(box.dtype)} for name, box in boxes
        }
        action: dict[str, Any] = {}
        if isinstance(action_space, spaces.MultiDiscrete):
            action = {"parts": action_space.nvec.tolist()}
        elif isinstance(action_space, spaces.Box):
            low, high = action_space.low.tolist(), action_space.high.tolist()
            action = {"shape": list(action_space.shape), "low": low, "high": high}
        spec = {
            "kind": KIND, "schema_version": VERSION, "observation": observation, "action": action
        }  # fmt: skip
        write_beside(policy, temporary, card, spec)
    return folder
