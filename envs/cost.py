"""How long operators compute and tensors travel: roofline, measured with a graph, or traced."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from envs.arrays import FloatArray
from envs.errors import InputError, require_one_of
from envs.graphs.kernels import Kernels
from envs.graphs.op_graph import OpGraph
from envs.graphs.readers.kineto import read_trace
from envs.graphs.traced_times import traced_times
from envs.hardware.devices import DeviceSpec
from envs.hardware.topology import Topology
from envs.units import DTYPES

_LOG = logging.getLogger(__name__)


def link_transfer_seconds(graph: OpGraph, topology: Topology) -> FloatArray:
    """(T, L) seconds: latency + bytes / bandwidth.

    Column 0 (same device) is 0, and so is the row of a tensor without bytes: it is a control
    dependency, which needs no message.
    """
    size = graph.tensor_bytes[:, None]
    seconds: FloatArray = topology.class_latency + size / topology.class_bandwidth
    seconds = np.where(size > 0, seconds, 0.0)
    seconds[:, 0] = 0.0
    return seconds


# Types without a floating-point rate: such operators are bound by memory alone.
MEMORY_BOUND_DTYPES: tuple[str, ...] = ("int64", "int32", "int16", "int8", "uint8", "bool")


class _LinkTransfers:
    def transfer_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(T, L) seconds; see `envs.cost.link_transfer_seconds`."""
        return link_transfer_seconds(graph, topology)


@dataclass(frozen=True)
class RooflineCost(_LinkTransfers):
    """The roofline model (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009).

        seconds = max(FLOP / (peak[dtype] * compute_efficiency),
                      (bytes read + bytes written) / (memory bandwidth * memory_efficiency))
                  + launch overhead

    with the figures of the device's `DeviceSpec`. An operator with neither FLOP nor bytes costs
    nothing. Operators on integers and booleans are bound by memory alone. Tensors travel in
    latency + bytes / bandwidth (`link_transfer_seconds`).
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

    def kernel_seconds(self, kernels: Kernels, spec: DeviceSpec, alone: bool = False) -> FloatArray:
        """(K,) seconds of kernels on a device, alone and amid others the same; NaN: no rate."""
        rates = np.array([spec.peak_flops.get(name, np.nan) for name in kernels.rate], np.float64)
        compute = np.where(kernels.flop > 0, kernels.flop / rates / spec.compute_efficiency, 0.0)
        moved = (kernels.bytes_read + kernels.bytes_written) / spec.memory_bandwidth
        found: FloatArray = np.maximum(compute, moved / spec.memory_efficiency)
        return found + spec.launch_overhead_s


def _seconds_on(graph: OpGraph, spec: DeviceSpec) -> FloatArray:
    """(N,) seconds of every operator on one kind of device."""
    rate = np.array([_rate(spec, dtype) for dtype in DTYPES])[graph.op_dtype]  # (N,) FLOP/s
    missing = np.flatnonzero(np.isnan(rate) & (graph.flop > 0))
    if len(missing):
        dtype = DTYPES[graph.op_dtype[missing[0]]]
        known = ", ".join(name for name in spec.peak_flops if name in DTYPES)
        raise InputError(
            f"device {spec.name} has no {dtype} rate (it has: {known})",
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


@dataclass(frozen=True)
class TabulatedCost:
    """Times as they stand in `profile_seconds` and `link_seconds` of the graph.

    A device takes the column named after its spec. A graph without a table of transfers (PipeDream
    profiles give bytes alone) takes latency + bytes / bandwidth of the link class.
    """

    def operator_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(N, D) seconds; inf where the device cannot run the operator.

        Raises:
            InputError: the graph has no profile, or none for one of the devices.
        """
        column = {name: index for index, name in enumerate(graph.profile_classes)}
        if not column:
            raise InputError("has no measured operator times", file=f"graph {graph.name}")
        for device in topology.devices:
            if device.spec.name not in column:
                raise InputError(
                    f"{device.spec.name!r} is not among the measured device classes of graph "
                    f"{graph.name} ({', '.join(column)})",
                    file=f"topology {topology.name}",
                    record=device.name,
                    field="spec",
                )
        columns = [column[device.spec.name] for device in topology.devices]
        return np.ascontiguousarray(graph.profile_seconds[:, columns])

    def transfer_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(T, L) seconds of each tensor on each link class; column 0 (same device) is 0.

        Raises:
            InputError: the graph's table is of other link classes than the topology's.
        """
        if not graph.link_classes:
            return link_transfer_seconds(graph, topology)
        column = {name: index for index, name in enumerate(graph.link_classes)}
        for name in topology.class_names:
            if name not in column:
                raise InputError(
                    f"link class {name!r} is not among the measured ones of graph {graph.name} "
                    f"({', '.join(column)})",
                    file=f"topology {topology.name}",
                    field="class_names",
                )
        return graph.link_seconds[:, [column[name] for name in topology.class_names]]


@dataclass(frozen=True)
class TracedCost(_LinkTransfers):
    """Times of a trace of torch's profiler, given to the operators of the captured graph.

    `envs.graphs.traced_times.traced_times` says how. Transfers take latency + bytes / bandwidth.

    Args:
        trace: a trace file, or one for each class of devices by its name.
        untimed: what an operator takes that the trace says nothing of: "refuse", or the "roofline"
            of the device.
    """

    trace: str | Mapping[str, str]
    untimed: str = "refuse"

    def __post_init__(self) -> None:
        files = self.trace.values() if isinstance(self.trace, Mapping) else [self.trace]
        if not all(isinstance(file, str) for file in files):
            reason = f"{self.trace!r} is no file and no mapping of device classes to files"
            raise InputError(reason, field="trace")
        require_one_of(self.untimed, ("refuse", "roofline"), field="untimed")

    def operator_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(N, D) seconds.

        Raises:
            InputError: a class of devices has no trace, a trace is not of this graph, or says
                nothing of some operators and they are not to have their roofline.
        """
        specs = {device.spec.name: device.spec for device in topology.devices}
        if isinstance(self.trace, str) and len(specs) > 1:
            raise InputError(
                f"is of one class of devices, and topology {topology.name} has {', '.join(specs)}: "
                "name one for each, {<class>: <file>, ...}",
                file=self.trace,
            )
        columns = {name: self._seconds(graph, spec) for name, spec in specs.items()}
        return np.stack([columns[device.spec.name] for device in topology.devices], axis=1)

    def inputs(self) -> dict[str, str]:
        """The trace files, by the class of devices; "" where one is for all."""
        return {"": self.trace} if isinstance(self.trace, str) else dict(self.trace)

    def _seconds(self, graph: OpGraph, spec: DeviceSpec) -> FloatArray:
        files = self.inputs()
        path = files.get("", files.get(spec.name))
        if path is None:
            known = ", ".join(files) or "none"
            raise InputError(
                f"names no trace of device {spec.name} (it has: {known})", field="trace"
            )
        found = traced_times(graph, read_trace(path))
        share = found.matched_seconds / max(found.total_seconds, 1e-12)
        summary = (
            f"{share:.0%} of the time in the trace, {found.runs} runs, are operators of the graph"
        )
        if found.shared:
            summary += f"; shares of what ran in their place: {', '.join(found.shared)}"
        if found.untimed:
            listed = ", ".join(found.untimed)
            if self.untimed == "refuse":
                advice = "untimed=roofline gives them the roofline of the device"
                raise InputError(f"has no time for {listed}; {advice}", file=path)
            summary += f"; roofline: {listed}"
        _LOG.warning("%s: %s", path, summary)
        roofline = _seconds_on(graph, spec) if found.untimed else np.zeros(graph.num_operators)
        return np.where(np.isnan(found.seconds), roofline, found.seconds)


class CostByGraph:
    """Measured times where the graph carries them, the roofline of the devices elsewhere."""

    def operator_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(N, D) seconds."""
        return self._model(graph).operator_seconds(graph, topology)

    def transfer_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(T, L) seconds."""
        return self._model(graph).transfer_seconds(graph, topology)

    def _model(self, graph: OpGraph) -> RooflineCost | TabulatedCost:
        return TabulatedCost() if graph.profile_classes else RooflineCost()
