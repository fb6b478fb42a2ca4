"""A whole placement problem as one observation: the arrays of `PlacementFacts`, padded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.bounds import Count, bounded
from envs.placement.facts import (
    DEVICE,
    HIGH,
    LINK,
    LOW,
    NODE,
    NODE_DEVICE,
    UNPLACED,
    WHOLE,
    PlacementFacts,
)
from envs.placement.sweeps import Boards
from envs.spaces import check_sizes

FEATURES = (
    "node_features", "node_device_features", "flow", "device_features", "link_features",
    "whole_features",
)  # fmt: skip
SIZES = (
    "problem", "groups", "devices", "edges", "classes", "ports", "micro_batches", "start",
)  # fmt: skip
_MOST = 1e9


@bounded
@dataclass(frozen=True)
class WholeLayout:
    """The shapes of an observation of G groups, D devices, E edges, L link classes at most.

    `sizes` (8,) int64 holds what `SIZES` names: the number of the problem, the real sizes, the
    micro-batches, and the number of the start; `stands` (G,) int64 the devices that groups stand at
    then; everything else is an array of `PlacementFacts` by name, zero beyond them.
    """

    groups: Count = 64
    devices: Count = 32
    edges: Count = 1024
    classes: Count = 64

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every array but `sizes` and `stands`."""
        g, d, e, c = self.groups, self.devices, self.edges, self.classes
        return {
            "node_features": (g, NODE), "node_device_features": (g, d, NODE_DEVICE),
            "flow": (g, g), "device_features": (d, DEVICE), "link_features": (d, d, LINK),
            "whole_features": (WHOLE,), "seconds": (g, d), "able": (g, d), "state": (g,),
            "live": (g,), "capacity": (d,), "begin": (d,), "end": (d,), "place": (g,),
            "edge_seconds": (e, c), "edge_forward": (e,), "incident_ptr": (g + 1,),
            "incident": (2 * e, 3), "link_class": (d, d), "send_port": (d, d),
            "receive_port": (d, d), "server": (d,),
        }  # fmt: skip

    def space(self) -> spaces.Dict:
        """The Gymnasium space of such observations."""
        boxes: dict[str, spaces.Space[Any]] = {
            "sizes": spaces.Box(0, 2**62, (len(SIZES),), np.int64),
            "stands": spaces.Box(UNPLACED, 2**31, (self.groups,), np.int64),
        }
        for name, shape in self.shapes.items():
            if name in FEATURES and name != "flow":
                boxes[name] = spaces.Box(LOW, HIGH, shape, np.float32)
            elif name in _WHOLE_NUMBERS:
                boxes[name] = spaces.Box(-1, 2**31, shape, np.int64)
            elif name in _FLAGS:
                boxes[name] = spaces.Box(0, 1, shape, np.int8)
            else:
                boxes[name] = spaces.Box(-_MOST, _MOST, shape, np.float32)
        return spaces.Dict(boxes)

    def check(self, facts: PlacementFacts) -> None:
        """Raise where a problem does not fit.

        Raises:
            InputError: naming the size that is too small.
        """
        edges, classes = facts.edge_seconds.shape
        check_sizes(
            self, None, groups=facts.num_groups, devices=facts.num_devices, edges=edges,
            classes=classes,
        )  # fmt: skip

    def observe(
        self,
        facts: PlacementFacts,
        problem: int = 0,
        start: int = 0,
        stands: NDArray[np.int64] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """The observation of a problem with that number, at one of its starts: fresh arrays.

        `stands` (G,) are the devices of a start that is given.

        Raises:
            InputError: the problem does not fit.
        """
        self.check(facts)
        edges, classes = facts.edge_seconds.shape
        sizes = (
            problem, facts.num_groups, facts.num_devices, edges, classes, facts.num_ports,
            facts.micro_batches, start,
        )  # fmt: skip
        found: dict[str, NDArray[Any]] = {
            "sizes": np.array(sizes, dtype=np.int64),
            "stands": np.full(self.groups, UNPLACED, dtype=np.int64),
        }
        found["stands"][: facts.num_groups] = facts.starts[start] if stands is None else stands
        for name, shape in self.shapes.items():
            own = getattr(facts, name)
            kind = _KINDS.get(own.dtype.name, own.dtype)
            found[name] = np.zeros(shape, dtype=kind)
            found[name][tuple(slice(size) for size in own.shape)] = own
        return found


_WHOLE_NUMBERS = (
    "incident_ptr", "incident", "link_class", "send_port", "receive_port", "server",
)  # fmt: skip


_FLAGS = ("able", "edge_forward")
_KINDS = {"float64": np.float32, "bool": np.int8}


def boards_of(arrays: Mapping[str, NDArray[Any]]) -> Boards:
    """B observations, stacked, for the sweeps: cut to the largest real sizes."""
    sizes = arrays["sizes"]
    groups, devices, edges, classes = (int(sizes[:, k].max()) for k in range(1, 5))
    layout = WholeLayout(groups, devices, max(edges, 1), max(classes, 1))
    found: dict[str, Any] = {}
    for name, shape in layout.shapes.items():
        if name in FEATURES:
            continue
        cut = arrays[name][(slice(None), *(slice(size) for size in shape))]
        kind = np.float64 if cut.dtype == np.float32 else np.bool_ if name in _FLAGS else np.int64
        found[name] = np.ascontiguousarray(cut, dtype=kind)
    return Boards(
        groups=sizes[:, 1].copy(),
        devices=sizes[:, 2].copy(),
        micro_batches=sizes[:, 6].copy(),
        ports=int(sizes[:, 5].max()),
        **found,
    )
