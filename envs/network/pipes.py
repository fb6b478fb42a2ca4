"""Pipes between servers, as ports of a topology.

The pipe from server s to server d has number s x S + d, a send and a receive port after all others,
and serves its transfers one after another, as ports do.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.arrays import BoolArray, IntArray
from envs.errors import InputError
from envs.hardware.topology import Topology


def pipe_of_pairs(topology: Topology) -> tuple[BoolArray, IntArray]:
    """(D, D) whether two devices are in different servers, and the pipe of those that are."""
    server = topology.server
    apart = server[:, None] != server[None, :]
    return apart, server[:, None] * topology.num_servers + server[None, :]


def check_bandwidth(topology: Topology) -> None:
    """Refuse a topology whose links between servers cannot be shared out.

    Raises:
        InputError: a link class between servers has no bandwidth, only tabulated times.
    """
    apart, _ = pipe_of_pairs(topology)
    for kind in np.unique(topology.link_class[apart]):
        if not np.isfinite(topology.class_bandwidth[kind]):
            raise InputError(
                f"link class {topology.class_names[kind]!r} has no bandwidth to allocate",
                file=f"topology {topology.name}",
            )


def pipe_topology(topology: Topology, mark: IntArray) -> tuple[Topology, IntArray, IntArray]:
    """`topology` with the ports of pipes between its servers, and a link class for every mark.

    Args:
        mark: (D, D) pairs of one class in different servers stay in one class where their marks
            are equal. Inside a server marks do not count.

    Returns:
        The topology, whose new classes (L,) have the names, latencies and bandwidths of the old;
        (L,) the old class of each; (L,) its mark, -1 inside servers.
    """
    apart, pipe = pipe_of_pairs(topology)
    between = ~np.eye(topology.num_devices, dtype=np.bool_)
    marks = np.where(apart, mark, -1)
    width = int(marks.max()) + 2
    key = topology.link_class * width + marks + 1
    known, first, which = np.unique(
        np.concatenate(([0], key[between])), return_index=True, return_inverse=True
    )
    seen = np.argsort(first)  # classes are numbered as they appear
    link_class = np.zeros_like(topology.link_class)
    link_class[between] = np.argsort(seen)[which[1:]]
    before, marked = known[seen] // width, known[seen] % width - 1
    ports, servers = topology.num_ports, range(topology.num_servers)
    through = replace(
        topology,
        link_class=link_class,
        class_names=tuple(topology.class_names[kind] for kind in before),
        class_latency=topology.class_latency[before],
        class_bandwidth=topology.class_bandwidth[before],
        send_port=np.where(apart, ports + 2 * pipe, topology.send_port),
        receive_port=np.where(apart, ports + 2 * pipe + 1, topology.receive_port),
        port_names=(
            *topology.port_names,
            *(f"{pipe_name(s, e)} {way}" for s in servers for e in servers
              for way in ("send", "receive")),
        ),
        fabric=None,
    )  # fmt: skip
    return through, before, marked


def pipe_name(source: int, destination: int) -> str:
    """The pipe from server `source` to server `destination`."""
    return f"server{source} -> server{destination}"
