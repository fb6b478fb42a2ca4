"""Profiles of the models of the zoo, from their graphs and the datasheets of the devices."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from envs.cluster.interference.profiles import JobProfile
from envs.cost import RooflineCost
from envs.graphs.op_graph import OpGraph
from envs.graphs.zoo import zoo_graph
from envs.graphs.zoo_models import ZooModel, zoo_model
from envs.hardware.builders import DEVICES, single_server
from envs.hardware.devices import CATALOGUE
from envs.hardware.fabric import LinkSpec
from envs.hardware.servers import PcieServer

PIXELS = 3 * 224 * 224 * 4  # bytes of an image in float32
TOKEN = 8  # bytes of a token and of a label in int64


def zoo_profile(
    name: str, reference: str, least_gpus: int, most_gpus: int, devices: Iterable[str] = DEVICES
) -> JobProfile:
    """The profile of the zoo's model `name` with its own batch, sequence and micro-batches.

    The seconds of a step are the sum of the rooflines of its operators (one GPU runs one after the
    other); it is busy except while kernels are launched on `reference`; the gradients are those of
    the graph; the input is a batch of images or of tokens, and its labels.

    Raises:
        InputError: an unknown model or device.
    """
    model, graph = zoo_model(name), zoo_graph(name)
    step = {device: seconds_alone(graph, device) for device in devices}
    launches = np.count_nonzero((graph.flop > 0) | (graph.bytes_read + graph.bytes_written > 0))
    idle = launches * CATALOGUE[reference].launch_overhead_s
    return JobProfile(
        name=name,
        gradients=float(graph.gradient_bytes.sum()),
        input=input_bytes(model),
        busy=1.0 - idle / seconds_alone(graph, reference),
        least_gpus=least_gpus,
        most_gpus=most_gpus,
        step=step,
    )


def seconds_alone(graph: OpGraph, device: str) -> float:
    """Seconds of all operators of `graph`, one after the other, on a device of the catalogue."""
    server = PcieServer(device, 1, LinkSpec("none", 1.0, 0.0), nics=0)
    topology = single_server(device, server)
    return float(RooflineCost().operator_seconds(graph, topology).sum())


def input_bytes(model: ZooModel) -> float:
    """Bytes of one batch of inputs and labels."""
    if model.sequence is None:
        return float(model.batch * (PIXELS + TOKEN))
    return float(model.batch * model.sequence * 2 * TOKEN)
