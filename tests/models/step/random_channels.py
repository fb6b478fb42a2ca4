"""Random observations of channels and links."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.bandwidth.types import BandwidthBounds, BandwidthObservation

LEVELS = 5
Observation = dict[str, NDArray[Any]]


def channel_space(channels: int, links: int, incidences: int, levels: int | None) -> spaces.Dict:
    """As `BandwidthEnv` makes it."""
    bounds = BandwidthBounds(channels, links, incidences, servers=3, phases=2)
    masks = {}
    if levels is not None:
        masks["action_mask"] = spaces.Box(0, 1, (channels, levels), np.int8)
    return spaces.Dict({**BandwidthObservation(bounds).space.spaces, **masks})


def random_channels(
    rng: np.random.Generator, channels: int, links: int, incidences: int
) -> Observation:
    """Channels, each over some links, without padding; some are not active."""
    seen: Observation = {
        name: rng.uniform(-1.0, 4.0, box.shape or ()).astype(np.float32)
        for name, box in channel_space(channels, links, incidences, LEVELS).items()
        if box.dtype == np.float32
    }
    cells = rng.choice(channels * links, min(incidences, channels * links), replace=False)
    seen["incidence"] = np.stack([cells // links, cells % links])
    seen["incidence_mask"] = np.ones(len(cells), np.int8)
    seen["channel_mask"] = np.ones(channels, np.int8)
    seen["channel_ends"] = rng.integers(0, 3, (2, channels))
    seen["link_mask"] = np.ones(links, np.int8)
    seen["active"] = rng.integers(0, 2, channels).astype(np.int8)
    seen["active"][0] = 1
    seen["action_mask"] = np.repeat(seen["active"][:, None], LEVELS, axis=1)
    seen["action_mask"][:, 0] = 1
    return seen


def padded_channels(seen: Observation, channels: int, links: int, incidences: int) -> Observation:
    """The same with that many more channels, links and incidences, all padding."""
    before_c, before_k = len(seen["channel_mask"]), len(seen["link_mask"])
    out = dict(seen)
    for name in ("channel_features", "channel_mask", "active", "action_mask"):
        out[name] = _more(seen[name], channels)
    out["action_mask"][before_c:, 0] = 1
    for name in ("link_features", "link_mask"):
        out[name] = _more(seen[name], links)
    out["incidence_mask"] = _more(seen["incidence_mask"], incidences)
    sink = np.repeat([[before_c + channels], [before_k + links]], incidences, axis=1)
    out["incidence"] = np.concatenate([seen["incidence"], sink], axis=1)
    return out


def _more(array: NDArray[Any], rows: int) -> NDArray[Any]:
    return np.concatenate([array, np.zeros((rows, *array.shape[1:]), array.dtype)])
