"""`examples/Recompute-v0`: keep the activations of a layer, or compute them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arrays import BoolArray
from envs.errors import InputError
from envs.spaces import begun, flags
from examples.extend.environment.generator import RandomLayers, toy_layers
from examples.extend.environment.types import Layers
from examples.extend.environment.viewer import layers_frame

Observation = dict[str, NDArray[Any]]


class RecomputeEnv(gym.Env[Observation, np.int64]):
    """Decide layer after layer whether its activations stay in memory.

    ## Guarantees
    None: the reward is exact, how long recomputation takes is given.

    ## Source
    An example.

    ## Description
    Activations that are kept take memory; those of the other layers are computed again in the
    backward pass, which takes time.

    ## Observation Space
    `Dict`: `layer`, float32 (4,): the layer's share of all seconds and of all bytes, the room that
    is left over all bytes, the share of layers decided; `action_mask`, int8 (2,).

    ## Action Space
    `Discrete(2)`: 0 computes the layer again, 1 keeps it, allowed while it fits.

    ## Reward
    Minus the seconds computed again over the seconds of all layers. In the toy the best keeps the
    first and the last of three layers, and collects -2 / 9 = -0.222.

    ## Starting State
    New layers of the generator, none decided.

    ## Episode End
    `terminated` after the last layer; never `truncated`.

    ## Information
    `recomputed_s` (seconds so far), `action_mask`.

    ## Arguments
    * `generator`: gives the layers of an episode.

    ## Version History
    * v0: initial version.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012  # Gymnasium's

    def __init__(
        self,
        generator: Callable[[np.random.Generator], Layers] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.generator = generator or RandomLayers()
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Dict(
            {"layer": spaces.Box(0.0, 1.0, (4,), np.float32), "action_mask": flags(2)}
        )
        self._layers: Layers | None = None
        self._kept: list[bool] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """New layers; `options` are not used."""
        super().reset(seed=seed)
        self._layers, self._kept = self.generator(self.np_random), []
        return self._shown()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Decide the next layer.

        Raises:
            InputError: the action is not allowed.
        """
        layers, at = begun(self._layers), len(self._kept)
        over = at == len(layers.seconds)
        if over or action not in self.action_space or not self.action_masks()[action]:
            raise InputError(f"{action} is not allowed", field="action")
        self._kept.append(bool(action))
        lost = 0.0 if action else layers.seconds[at] / layers.seconds.sum()
        observation, info = self._shown()
        return observation, -float(lost), len(self._kept) == len(layers.seconds), False, info

    def action_masks(self) -> BoolArray:
        """(2,) the actions that are allowed, one at least even when the episode has ended.

        MaskablePPO of sb3-contrib asks for them by this name.
        """
        rest = begun(self._layers).nbytes[len(self._kept) :]
        return np.array([True, len(rest) > 0 and rest[0] <= self._left()])

    def render(self) -> Any:
        """A bar for each layer; None without a render mode."""
        return layers_frame(begun(self._layers), self._kept) if self.render_mode else None

    def _left(self) -> float:
        layers = begun(self._layers)
        return layers.room - float(layers.nbytes[: len(self._kept)][self._kept].sum())

    def _shown(self) -> tuple[Observation, dict[str, Any]]:
        layers, at = begun(self._layers), len(self._kept)
        seconds, nbytes = (np.append(x, 0.0) / x.sum() for x in (layers.seconds, layers.nbytes))
        left, decided = self._left() / layers.nbytes.sum(), at / len(layers.seconds)
        mask = self.action_masks().astype(np.int8)
        again = float(layers.seconds[:at][~np.array(self._kept, dtype=bool)].sum())
        layer = np.array([seconds[at], nbytes[at], left, decided], dtype=np.float32)
        return (
            {"layer": layer, "action_mask": mask},
            {"recomputed_s": again, "action_mask": mask.copy()},
        )


def toy_environment(render_mode: str | None = None) -> RecomputeEnv:
    """`examples/RecomputeToy-v0`."""
    return RecomputeEnv(toy_layers, render_mode)
