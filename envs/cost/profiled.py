"""Operator times measured on real devices, read from a file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.cost.transfer import link_transfer_seconds
from envs.errors import InputError
from envs.graphs.op_graph import OpGraph
from envs.hardware.topology import FloatArray, Topology


@dataclass(frozen=True)
class ProfiledCost:
    """Measured seconds by operator name and device kind, in place of the roofline.

    The file is a JSON object: operator name -> device kind -> seconds. It may have more operators
    and kinds than are asked for. Tensors travel in latency + bytes / bandwidth.

    Args:
        path: the profile.
    """

    path: str | Path

    def operator_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(N, D) seconds.

        Raises:
            InputError: naming file, operator and device kind, when a measurement is missing or is
                no finite number of seconds >= 0.
        """
        profile = self._read()
        kinds = {device.spec.name for device in topology.devices}
        by_kind = {
            kind: np.array([self._seconds(profile, op, kind) for op in graph.op_names])
            for kind in sorted(kinds)
        }
        return np.stack([by_kind[device.spec.name] for device in topology.devices], axis=1)

    def transfer_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(T, L) seconds; see `envs.cost.transfer.link_transfer_seconds`."""
        return link_transfer_seconds(graph, topology)

    def _read(self) -> dict[str, object]:
        try:
            profile = json.loads(Path(self.path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"cannot be read as JSON: {error}", file=self.path) from error
        if not isinstance(profile, dict):
            raise InputError("is no object of operators", file=self.path)
        return profile

    def _seconds(self, profile: dict[str, object], op: str, kind: str) -> float:
        measured = profile.get(op)
        if not isinstance(measured, dict):
            raise InputError("operator is not in the profile", file=self.path, record=op)
        seconds = measured.get(kind)
        if seconds is None:
            raise InputError(
                "was not measured on this device", file=self.path, record=op, field=kind
            )
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise InputError(f"{seconds!r} is no number", file=self.path, record=op, field=kind)
        if not math.isfinite(seconds) or seconds < 0:
            raise InputError(
                f"{seconds!r} is negative or not finite", file=self.path, record=op, field=kind
            )
        return float(seconds)
