"""Operator times from the roofline of each device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.cost.transfer import link_transfer_seconds
from envs.errors import InputError
from envs.graphs.op_graph import OpGraph
from envs.hardware.devices import DeviceSpec
from envs.hardware.topology import FloatArray, Topology
from envs.units import DTYPES

# Types without a floating-point rate: such operators are bound by memory alone.
MEMORY_BOUND_DTYPES: tuple[str, ...] = ("int64", "int32", "int16", "int8", "uint8", "bool")


@dataclass(frozen=True)
class RooflineCost:
    """The roofline model (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009).

        seconds = max(FLOP / (peak[dtype] * compute_efficiency),
                      (bytes read + bytes written) / (memory bandwidth * memory_efficiency))
                  + launch overhead

    with the figures of the device's `DeviceSpec`. An operator with neither FLOP nor bytes costs
    nothing. Operators on integers and booleans are bound by memory alone. Tensors travel in
    latency + bytes / bandwidth (`envs.cost.transfer`).
    """

    def operator_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(N, D) seconds.

        Raises:
            InputError: naming device kind and dtype, when an operator computes in a type the
                device has no rate for.
        """
        specs = {id(device.spec): device.spec for device in topology.devices}
        columns = {key: _seconds_on(graph, spec) for key, spec in specs.items()}
        return np.stack([columns[id(device.spec)] for device in topology.devices], axis=1)

    def transfer_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(T, L) seconds; see `envs.cost.transfer.link_transfer_seconds`."""
        return link_transfer_seconds(graph, topology)


def _seconds_on(graph: OpGraph, spec: DeviceSpec) -> FloatArray:
    """(N,) seconds of every operator on one kind of device."""
    rate = np.array([_rate(spec, dtype) for dtype in DTYPES])[graph.op_dtype]  # (N,) FLOP/s
    missing = np.flatnonzero(np.isnan(rate) & (graph.flop > 0))
    if len(missing):
        dtype = DTYPES[graph.op_dtype[missing[0]]]
        raise InputError(
            f"device {spec.name} has no {dtype} rate (it has: {', '.join(spec.peak_flops)})",
            file=f"graph {graph.name}",
            record=graph.op_names[missing[0]],
            field="dtype",
        )
    compute = np.where(graph.flop > 0, graph.flop / rate, 0.0)
    moved = graph.bytes_read + graph.bytes_written
    memory = moved / (spec.memory_bandwidth * spec.memory_efficiency)
    seconds = np.maximum(compute, memory) + spec.launch_overhead_s
    return np.where((graph.flop > 0) | (moved > 0), seconds, 0.0)


def _rate(spec: DeviceSpec, dtype: str) -> float:
    """FLOP/s reached; inf where memory alone binds, NaN where the device has no rate."""
    if dtype in MEMORY_BOUND_DTYPES:
        return np.inf
    return spec.peak_flops.get(dtype, np.nan) * spec.compute_efficiency
