"""Servers on real links: network namespaces, veth cables of a known rate, one bridge per plane."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from experiments.execution.namespaces import bucket, ip, namespaces, run

BRIDGE = "link add name {0} type bridge forward_delay 0\nlink set {0} up"
PRIORITY = -10  # niceness of what runs on a server: links wait for no core


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
        return run("ip", "netns", "exec", self.servers[server], *command, check=check)

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
    with namespaces(servers + 1) as (wires, *names):
        made = Cluster(tuple(names), wires, planes)
        ip(wires, "\n".join(BRIDGE.format(f"plane{plane}") for plane in range(planes)))
        for server, name in enumerate(names):
            for plane in range(planes):
                _cable(made, server, plane, rate)
            ip(name, f"addr add {made.address(server)}/32 dev lo")
            for setting in ("tcp_congestion_control=reno", "fib_multipath_hash_policy=1"):
                made.run(server, "sysctl", "-qw", f"net.ipv4.{setting}")
        yield made


def _cable(made: Cluster, server: int, plane: int, rate: float) -> None:
    """NIC - near end - small bridge - far end - plane, with a bucket at either inner end."""
    name, wires, nic = made.servers[server], made.wires, f"nic{plane}"
    near, up, down, box = (f"{kind}{plane}{server}" for kind in ("near", "up", "down", "box"))
    ip(name, f"link add {nic} type veth peer {near} netns {wires}")
    masters = {near: box, up: box, down: f"plane{plane}"}
    ip(wires, "\n".join([
        f"link add {up} type veth peer name {down}",
        BRIDGE.format(box),
        *(f"link set {end} master {bridge} up" for end, bridge in masters.items()),
    ]))  # fmt: skip
    for end in (near, up):
        run("tc", "-n", wires, "qdisc", "add", "dev", end, "root", *bucket(rate))
    ip(name, f"link set {nic} up\naddr add {made.address(server, plane)}/24 dev {nic}")
