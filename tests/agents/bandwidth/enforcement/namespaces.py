"""Servers on real links: network namespaces, veth cables of a known rate, one bridge per plane."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PREFIX = "meshwright"
PRIORITY = -10  # niceness of what runs on a server: links wait for no core
BURST_BYTES = 131_072  # of a cable's token bucket: two of the largest segments


def why_not() -> str:
    """Why no namespaces can be made here; empty where they can."""
    if os.geteuid() != 0:
        return "needs root: network namespaces, tc and ip"
    for program in ("ip", "tc", "iperf3"):
        if shutil.which(program) is None:
            return f"needs the program {program}"
    name = f"{PREFIX}-{os.getpid()}-probe"
    made = _quiet("ip", "netns", "add", name)
    try:
        if made.returncode:
            return f"needs network namespaces ({made.stderr.strip()})"
        for command in (
            ["ip", "link", "add", "name", "a", "type", "bridge"],
            ["ip", "link", "add", "name", "b", "type", "veth", "peer", "name", "c"],
            ["tc", "qdisc", "add", "dev", "b", "root", "handle", "1:", "htb"],
            ["tc", "qdisc", "add", "dev", "c", "root", *_bucket(1e6)],
        ):
            done = _quiet("ip", "netns", "exec", name, *command)
            if done.returncode:
                return f"needs a kernel that does {' '.join(command)!r} ({done.stderr.strip()})"
    finally:
        _quiet("ip", "netns", "del", name)
    return ""


@dataclass(frozen=True)
class Cluster:
    """Namespaces of the servers and the one that holds cables and bridges.

    Server s has NICs `nic0`, `nic1`, ... with the addresses 10.<plane>.0.<s + 1>/24, and the
    address 10.255.0.<s + 1> of its own on the loopback.
    """

    servers: tuple[str, ...]
    wires: str
    planes: int

    def address(self, server: int, plane: int | None = None) -> str:
        """Of a server's NIC; the server's own without a plane."""
        return f"10.{255 if plane is None else plane}.0.{server + 1}"

    def run(self, server: int, *command: str, check: bool = True) -> str:
        """What a command prints that runs on a server."""
        full = ["ip", "netns", "exec", self.servers[server], *command]
        done = subprocess.run(full, capture_output=True, text=True, check=False, timeout=60)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self, server: int, *command: str) -> subprocess.Popen[str]:
        """A command that runs on a server beside this process, before others that want a core."""
        full = ["ip", "netns", "exec", self.servers[server], *command]
        pipe = subprocess.PIPE
        started = subprocess.Popen(
            full, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, started.pid, PRIORITY)
        return started


@contextmanager
def cluster(servers: int, planes: int, rate: float) -> Iterator[Cluster]:
    """Servers joined by cables of `rate` bytes/s each way; all is removed at the end."""
    mark = f"{PREFIX}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    names = tuple(f"{mark}-s{s}" for s in range(servers))
    made = Cluster(names, f"{mark}-w", planes)
    try:
        for name in (*names, made.wires):
            _must("ip", "netns", "add", name)
            _must("ip", "-n", name, "link", "set", "lo", "up")
        for plane in range(planes):
            _bridge(made.wires, f"plane{plane}")
            for server in range(servers):
                _cable(made, server, plane, rate)
        for server, name in enumerate(names):
            _must("ip", "-n", name, "addr", "add", f"{made.address(server)}/32", "dev", "lo")
            settings = ("tcp_congestion_control=reno", "fib_multipath_hash_policy=1")
            for setting in settings:
                made.run(server, "sysctl", "-qw", f"net.ipv4.{setting}")
        yield made
    finally:
        for name in (*names, made.wires):
            for pid in _quiet("ip", "netns", "pids", name).stdout.split():
                _quiet("kill", "-9", pid)
            _quiet("ip", "netns", "del", name)


def remove_leftovers() -> None:
    """Remove the namespaces of processes that were killed."""
    for line in _quiet("ip", "netns", "list").stdout.splitlines():
        name = line.split()[0]
        parts = name.split("-")
        if parts[0] == PREFIX and not Path("/proc", parts[1]).exists():
            _quiet("ip", "netns", "del", name)


def _cable(made: Cluster, server: int, plane: int, rate: float) -> None:
    """NIC - near end - small bridge - far end - plane, with a bucket at either inner end."""
    name, wires = made.servers[server], made.wires
    near, up, down, box = (f"{kind}{plane}{server}" for kind in ("near", "up", "down", "box"))
    nic = f"nic{plane}"
    _must("ip", "-n", name, "link", "add", nic, "type", "veth", "peer", near, "netns", wires)
    _must("ip", "-n", wires, "link", "add", up, "type", "veth", "peer", "name", down)
    _bridge(wires, box)
    for end, bridge in ((near, box), (up, box), (down, f"plane{plane}")):
        _must("ip", "-n", wires, "link", "set", end, "master", bridge, "up")
    for end in (near, up):
        _must("tc", "-n", wires, "qdisc", "add", "dev", end, "root", *_bucket(rate))
    _must("ip", "-n", name, "link", "set", nic, "up")
    _must("ip", "-n", name, "addr", "add", f"{made.address(server, plane)}/24", "dev", nic)


def _bridge(wires: str, name: str) -> None:
    _must("ip", "-n", wires, "link", "add", name, "type", "bridge", "forward_delay", "0")
    _must("ip", "-n", wires, "link", "set", name, "up")


def _bucket(rate: float) -> list[str]:
    """A token bucket of `rate` bytes/s with room for a quarter of a second."""
    bits, room = f"{round(8 * rate)}bit", str(round(rate / 4) + BURST_BYTES)
    return ["tbf", "rate", bits, "burst", str(BURST_BYTES), "limit", room]


def _must(*command: str) -> None:
    done = _quiet(*command)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr}")


def _quiet(*command: str) -> subprocess.CompletedProcess[str]:
    full: Sequence[str] = command
    return subprocess.run(full, capture_output=True, text=True, check=False, timeout=60)
