"""Networks on which optimal synchronisation has been published, and random uneven ones.

Every builder returns a `LinkGraph`; rates are bytes/s of one direction, latencies seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated

import numpy as np
from annotated_types import Ge

from envs.bounds import Count, NonNegative, Positive, bounded
from envs.hardware.servers import HYBRID_CUBE_MESH
from envs.synchronisation.link_graph import LinkGraph, VertexSpec, graph_of

Links = list[tuple[str, str, float, float]]


@bounded
@dataclass(frozen=True)
class Rate:
    """What one link passes, and how long a byte is under way."""

    capacity: Positive  # bytes/s
    latency: NonNegative  # seconds


@bounded
def cube_mesh(
    name: str,
    boxes: Count,
    nvlink: Rate,
    doubled: bool,
    network: Rate | None = None,
    sender: int = 1,
    receiver: int = 0,
) -> LinkGraph:
    """Boxes of eight GPUs in NVIDIA's hybrid cube mesh, one network card in each.

    Args:
        nvlink: of one brick.
        doubled: whether some pairs have two bricks, as V100 have and P100 have not.
        network: of a box's card to and from the switch between boxes; None for one box.
        sender: GPU through which a box sends to others.
        receiver: GPU through which it receives.
    """
    gpus = [[f"box{box}/gpu{gpu}" for gpu in range(8)] for box in range(boxes)]
    links: Links = []
    for box in gpus:
        for (a, b), bricks in HYBRID_CUBE_MESH.items():
            links += _both(box[a], box[b], nvlink, bricks if doubled else 1)
        if network:
            links.append((box[sender], "switch", network.capacity, network.latency))
            links.append(("switch", box[receiver], network.capacity, network.latency))
    return _built(name, gpus, ["switch"] if network else [], links)


@bounded
def switched(
    name: str,
    boxes: Count,
    gpus: Count,  # in a box
    nvlink: Rate,
    network: Rate | None = None,
    paired: bool = False,
) -> LinkGraph:
    """Boxes of GPUs around an NVSwitch.

    Args:
        nvlink: of a GPU to and from the NVSwitch.
        network: of a card, to and from the switch between boxes; None for one box.
        paired: two GPUs share a card, of which the odd one sends and the even one receives, from
            GPU to GPU (TACCL, NSDI 2023, and TE-CCL, SIGCOMM 2024, on DGX-2); otherwise each GPU
            has its own.
    """
    names = [[f"box{box}/gpu{gpu}" for gpu in range(gpus)] for box in range(boxes)]
    switches = [f"box{box}/nvswitch" for box in range(boxes)]
    links = [x for s, box in zip(switches, names, strict=True) for g in box
             for x in _both(g, s, nvlink)]  # fmt: skip
    if network and paired:
        links += [
            (a, b, network.capacity, network.latency)
            for box in names for other in names if box is not other
            for a, b in zip(box[1::2], other[::2], strict=True)
        ]  # fmt: skip
    elif network:
        switches.append("switch")
        links += [x for box in names for gpu in box for x in _both(gpu, "switch", network)]
    return _built(name, names, switches, links)


@bounded
def planes(name: str, devices: Annotated[int, Ge(2)], count: Count, rate: Rate) -> LinkGraph:
    """Devices with a card in each of many planes, which are one switch each."""
    names, switches = [f"server{d}/0" for d in range(devices)], [f"plane{p}" for p in range(count)]
    links = [x for a in names for s in switches for x in _both(a, s, rate)]
    return _built(name, [names], switches, links)


@bounded
def uneven(seed: Annotated[int, Ge(0)], name: str = "uneven") -> LinkGraph:
    """One to four servers of one to six devices, at least three in all, drawn anew for each seed.

    The devices of a server hang on a switch (PCIe, NVSwitch) or are joined by a ring and chords of
    one to four NVLinks; one or two cards lead from some of them, or from the switch, to the switch
    between servers. Every rate is drawn; links pass as much one way as the other.
    """
    rng = np.random.default_rng(seed)

    def rate(choices: Sequence[float], latency: float) -> Rate:
        return Rate(float(rng.choice(choices)) * 1e9, latency)

    sizes = rng.integers(1, 7, size=rng.integers(1, 5)).tolist()
    sizes[0] += max(3 - sum(sizes), 0)
    boxes = [[f"server{b}/{d}" for d in range(size)] for b, size in enumerate(sizes)]
    switches, links = [], Links()
    for number, box in enumerate(boxes):
        doors = box
        if len(box) > 1 and rng.random() < 0.5:
            doors = [f"server{number}/switch"]
            switches += doors
            for device in box:
                links += _both(device, doors[0], rate([8, 16, 32, 64, 150, 300], 1e-6))
        else:
            for a, b in combinations(range(len(box)), 2):
                if b == a + 1 or (a == 0 and b == len(box) - 1) or rng.random() < 0.3:
                    links += _both(box[a], box[b], rate([25, 50], 7e-7), int(rng.integers(1, 3)))
        for door in rng.permutation(doors)[: rng.integers(1, 3)] if len(boxes) > 1 else ():
            links += _both(str(door), "switch", rate([1.25, 3.125, 6.25, 12.5, 25, 50], 2e-6))
    return _built(name, boxes, [*switches, "switch"] if len(boxes) > 1 else switches, links)


def _both(a: str, b: str, rate: Rate, times: int = 1) -> Links:
    return [(x, y, rate.capacity * times, rate.latency) for x, y in ((a, b), (b, a))]


def _built(
    name: str, boxes: Sequence[Sequence[str]], switches: Sequence[str], links: Links
) -> LinkGraph:
    taking = [VertexSpec(gpu, True, True, True) for box in boxes for gpu in box]
    return graph_of(name, [*taking, *(VertexSpec(x, False, False, True) for x in switches)], links)
