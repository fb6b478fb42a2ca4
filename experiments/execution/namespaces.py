"""Real links: namespaces of this machine, veth cables, token buckets, frames of TCP."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import networkx as nx
from annotated_types import Ge, Le

from envs.bounds import bounded
from envs.errors import InputError
from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.plan import Way

PREFIX = "meshwright"
BURST_BYTES = 131_072  # of a bucket: two of the largest segments
LEAST_BURST, BURST_S = 16_384, 2e-3  # bytes and seconds that a link may catch up on a late timer
QUEUE_BYTES = 2**26  # before a link: none is lost
NETS = {"cable": "10.0.0.0", "way": "10.64.0.0", "own": "10.128.0.0", "control": "10.192.0.1"}
SETTINGS = {
    "ip_forward": "1",
    "conf.all.rp_filter": "0",  # an answer may come another way
    "tcp_congestion_control": "reno",
    "tcp_wmem": "4096 65536 65536",  # bytes of a connection that may wait for links
    "tcp_slow_start_after_idle": "0",
}
_CLONE_NEWNET = 0x40000000  # sched.h
ETHERNET_HEADER = 14  # bytes: two addresses and the type, as the kernel counts a frame
TCP_IP_HEADERS = 52  # bytes: IPv4 (20), TCP (20) and its timestamps (12)
_LEAST_MTU = 576  # bytes every IPv4 link carries at least (RFC 791, section 3.1)


@bounded
@dataclass(frozen=True)
class Framing:
    """The frames of full TCP segments.

    A plan's rates are shares of link capacities, that is of what the line carries. The line carries
    `mtu` + 14 + `line_overhead` bytes for every `mtu` - 52 bytes of payload; the kernel and its
    queues count `mtu` + 14 of them. With an MTU of 1500 that is 1514 bytes for 1448.

    Args:
        mtu: bytes of the largest IP packet.
        line_overhead: bytes of a frame that the kernel does not count: 24 on Ethernet (preamble 8,
            check sequence 4, gap 12; IEEE 802.3), 0 on virtual links.
    """

    mtu: Annotated[int, Ge(_LEAST_MTU), Le(65_535)]
    line_overhead: Annotated[int, Ge(0), Le(1000)]

    def kernel_rate(self, rate: float) -> float:
        """Bytes/s that the kernel counts where the line carries `rate` bytes/s."""
        frame = self.mtu + ETHERNET_HEADER
        return rate * frame / (frame + self.line_overhead)

    def payload_rate(self, rate: float) -> float:
        """Bytes/s that programs exchange over TCP where the line carries `rate` bytes/s."""
        return self.kernel_rate(rate) * (self.mtu - TCP_IP_HEADERS) / (self.mtu + ETHERNET_HEADER)

    def kernel_bits(self, rate: float) -> int:
        """Whole bit/s for a queue, rounded down to whole bytes/s; 0 below one byte/s."""
        return 8 * int(self.kernel_rate(rate))


def why_not(*programs: str) -> str:
    """Why no namespaces can be made here; empty where they can, and `programs` are there too."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "needs root: network namespaces, tc and ip"
    for program in ("ip", "tc", *programs):
        if shutil.which(program) is None:
            return f"needs the program {program}"
    try:
        with namespaces(1) as (name,):
            ip(name, "link add name a type bridge\nlink add name b type veth peer name c")
            run("tc", "-n", name, "-batch", "-", text=_queues("b", 1e6))
            run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "c", "root", *bucket(1e6))
    except InputError as error:
        return f"needs network namespaces, and a kernel that shapes their links ({error})"
    return ""


@contextmanager
def namespaces(count: int) -> Iterator[tuple[str, ...]]:
    """Names of as many new network namespaces; they end with all that runs in them.

    Raises:
        InputError: one cannot be made.
    """
    mark = f"{PREFIX}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    names = tuple(f"{mark}-{number}" for number in range(count))
    try:
        for name in names:
            run("ip", "netns", "add", name)
            ip(name, "link set lo up")
        yield names
    finally:
        for name in names:
            for pid in run("ip", "netns", "pids", name, check=False).split():
                run("kill", "-9", pid, check=False)
            run("ip", "netns", "del", name, check=False)


def remove_leftovers() -> None:
    """Remove the namespaces of processes that were killed."""
    for line in run("ip", "netns", "list", check=False).splitlines():
        name = line.split()[0]
        parts = name.split("-")
        if parts[0] == PREFIX and not Path("/proc", parts[1]).exists():
            run("ip", "netns", "del", name, check=False)


def enter(namespace: str) -> None:
    """Put this thread, and those it starts, into a namespace."""
    with Path("/run/netns", namespace).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def bucket(rate: float) -> list[str]:
    """A token bucket of `rate` bytes/s with room for a quarter of a second."""
    bits, room = f"{round(8 * rate)}bit", str(round(rate / 4) + BURST_BYTES)
    return ["tbf", "rate", bits, "burst", str(BURST_BYTES), "limit", room]


def run(*command: str, check: bool = True, text: str | None = None) -> str:
    """What a command prints that is given `text`.

    Raises:
        InputError: it fails, and `check` is set.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, input=text
    )
    if check and done.returncode:
        output = " ".join((done.stdout + done.stderr).split())
        raise InputError(f"{' '.join(command)}: {output}")
    return done.stdout


def ip(namespace: str, commands: str) -> None:
    """Do commands of `ip`, a line each, in a namespace.

    Raises:
        InputError: one fails.
    """
    run("ip", "-n", namespace, "-batch", "-", text=commands)


def address(kind: str, number: int, end: int = 0) -> str:
    """Of an end of a cable or a way (0: where it begins), of a vertex, of it beside the links."""
    return str(IPv4Address(NETS[kind]) + 2 * number + end)


@contextmanager
def real_links(network: LinkGraph, ways: Sequence[Way]) -> Iterator[tuple[str, ...]]:
    """A namespace for every vertex, joined by the links of a network; all is removed at the end.

    A link is a veth cable behind a queue of its rate; where only one direction is a link, the other
    carries acknowledgements at any rate. Packets between the two addresses of a way keep to it;
    those to a vertex's own address take the fewest links; beside the links, a bridge joins all.

    Raises:
        InputError: this machine does not permit it.
    """
    if fault := why_not():
        raise InputError(f"config key 'links': {fault}")
    remove_leftovers()
    with namespaces(network.num_vertices + 1) as (wires, *names):
        ip(wires, "link add name hub up type bridge")
        adding: list[list[str]] = []  # to the namespace of every vertex
        for v, name in enumerate(names):
            ip(name, f"link add control type veth peer name v{v} netns {wires}")
            ip(wires, f"link set v{v} master hub up")
            both = (f"addr add {address('control', v)}/16 dev control", "link set control up")
            adding.append([*both, f"addr add {address('own', v)}/32 dev lo"])
        near: dict[tuple[int, int], tuple[str, str]] = {}  # from a to b: a's interface, b's address
        for cable, ends in enumerate(sorted({(min(x), max(x)) for x in network.link})):
            veth = f"link add c{cable} type veth peer name c{cable} netns {names[ends[1]]}"
            ip(names[ends[0]], veth)
            for end, v in enumerate(ends):
                near[v, ends[1 - end]] = f"c{cable}", address("cable", cable, 1 - end)
                own = f"addr add {address('cable', cable, end)}/31 dev c{cable}"
                adding[v] += [own, f"link set c{cable} up"]
        for (a, b), link in network.link.items():
            queues = _queues(near[a, b][0], float(network.capacity[link]))
            run("tc", "-n", names[a], "-batch", "-", text=queues)
        for (v, target), way in fewest_links(network).items():
            hop = f"via {near[v, way[1]][1]} src {address('own', v)}"
            adding[v].append(f"route add {address('own', target)} {hop} rto_min 2s")
        for number, way in enumerate(ways):
            for end, along in enumerate((way[::-1], way)):  # towards the beginning, and the end
                here, there = address("way", number, 1 - end), address("way", number, end)
                adding[along[-1]].append(f"addr add {there}/32 dev lo")
                for a, b in pairwise(along):
                    source = here if a == along[0] else address("own", a)
                    hop = f"via {near[a, b][1]} src {source} rto_min 2s"
                    adding[a].append(f"route add {there} {hop}")
        settings = [f"net.ipv4.{key}={value}" for key, value in SETTINGS.items()]
        for v, name in enumerate(names):
            run("ip", "netns", "exec", name, "sysctl", "-qw", *settings)
            ip(name, "\n".join(sorted(adding[v], key=lambda line: line.startswith("route"))))
        yield tuple(names)


def _queues(device: str, rate: float) -> str:
    """tc commands: `rate` bytes/s, and acknowledgements before what they acknowledge the like of.

    Without that, connections one way would hold up those the other way.
    """
    bits, burst = round(8 * rate), max(LEAST_BURST, round(rate * BURST_S))
    whole = f"ceil {bits}bit burst {burst} cburst {burst}"
    return "\n".join(
        (
            f"qdisc add dev {device} root handle 1: htb default 3",
            f"class add dev {device} parent 1: classid 1:1 htb rate {bits}bit {whole}",
            f"class add dev {device} parent 1:1 classid 1:2 htb rate {bits // 4}bit {whole} prio 0",
            f"class add dev {device} parent 1:1 classid 1:3 htb rate {bits // 2}bit {whole} prio 1",
            f"qdisc add dev {device} parent 1:3 bfifo limit {QUEUE_BYTES}",
            f"filter add dev {device} parent 1: protocol ip u32 match u16 0x0000 0xffc0 at 2 "
            "flowid 1:2",
        )
    )


def fewest_links(network: LinkGraph) -> dict[tuple[int, int], Way]:
    """The way from a vertex to another over the fewest links, the fastest of those.

    Vertices that do not forward stand at ends only; pairs that no way joins are left out.
    """
    found: dict[tuple[int, int], Way] = {}
    slow = 1.0 / network.capacity
    weight = 1.0 + slow / slow.max() / network.num_vertices
    for target in range(network.num_vertices):
        graph = nx.DiGraph()
        for (a, b), link in network.link.items():
            if b == target or network.forwards[b]:
                graph.add_edge(b, a, weight=weight[link])
        if target in graph:
            for vertex, way in nx.single_source_dijkstra_path(graph, target).items():
                if vertex != target:
                    found[vertex, target] = tuple(reversed(way))
    return found
