"""Load on a running service of decisions: latency, growth of memory, and nonsense among the good.

python -m experiments.serve port=8000 &
python -m tests.benchmarks.serve_load --url http://127.0.0.1:8000 --rate 50 --seconds 600
python -m tests.benchmarks.serve_load --clients 8 --seconds 15 --kubernetes whole
python -m tests.benchmarks.serve_load --url http://127.0.0.1:8000 --clients 64 --seconds 15

States are those of 64 servers with 8 GPUs each under the shipped scheduler, which meets a trace of
10 times the cluster's load. Requests leave at a steady rate, whatever the answers do; or so many
clients ask again as soon as they are answered. With `--kubernetes` they are kube-schedulers that
ask about pods, most of them in gangs, on 64 whole nodes or on their names. It talks to this machine
alone, and ends after at most an hour or `MOST_REQUESTS`.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from agents.cluster.live import ClusterDecider
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import Overheads
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.state_documents import document_of
from tests.experiments.kubernetes_objects import node, pod

SERVERS, GPUS = 64, 8
JOBS, OVERLOAD = 2_000, 10.0
FIRST, STATES = 420, 20  # decisions before the first state, and states
MOST_SECONDS, MOST_REQUESTS, MOST_CLIENTS = 3600.0, 200_000, 512
MALFORMED = (
    b"", b"{", b"[]", b"null", b'{"now_s": 1}', b'{"now_s": NaN, "nodes": [], "jobs": []}',
    b'{"now_s": 1, "nodes": [{"id": "a", "gpu_type": "g", "num_gpus": 1}], "jobs": [{"id": 7}]}',
    b"\xff\xfe", b"[" * 10_000, b'{"now_s": 1e400}',
)  # fmt: skip


def states(number: int = STATES) -> list[bytes]:
    """States at successive decisions, as JSON."""
    rng = np.random.default_rng(0)
    gpus = rng.choice([1, 1, 1, 2, 2, 4, 8, 16], JOBS)
    duration = rng.lognormal(8.5, 1.5, JOBS).astype(int) + 30
    span = int((gpus * duration).sum() / (SERVERS * GPUS) / OVERLOAD)
    trace = Trace.of("drawn", np.sort(rng.integers(0, span, JOBS)), duration, gpus)
    types = ("V100", "P100", "T4")
    cluster = Cluster.uniform(SERVERS, GPUS, nodes_per_rack=4, gpu_types=types)
    plan = ClusterDecider("unknown_durations").scheduler.mover
    assert plan is not None
    simulator = ClusterSimulator(cluster, trace, overheads=Overheads(60.0, 0.0))
    plan.reset(simulator)
    found: list[bytes] = []
    decisions = 0
    while len(found) < number:
        simulator.advance(plan.wake(simulator))
        if decisions >= FIRST:
            found.append(json.dumps(document_of(simulator, durations=False)).encode())
        decisions += 1
        plan.decide(simulator)
    return found


class FilterRequests(Sequence[bytes]):
    """Of pods that keep coming, most of them in gangs, and are asked about twice.

    Args:
        nodes: `v1.NodeList`, as JSON, or null.
        names: of nodes, as JSON, or null.
    """

    def __init__(self, nodes: bytes, names: bytes) -> None:
        self._where = b',"Nodes":%b,"NodeNames":%b}' % (nodes, names)
        rng = np.random.default_rng(0)
        self._pods: list[bytes] = []
        while len(self._pods) < MOST_REQUESTS // 10:
            gang, size = len(self._pods), int(rng.choice([1, 1, 2, 4]))
            gpus = int(rng.choice([1, 2, 4, 8]))
            pods = [pod(f"p{gang}-{i}", gpus, f"g{gang}", size) for i in range(size)]
            self._pods += 2 * [json.dumps(one, separators=(",", ":")).encode() for one in pods]

    def __len__(self) -> int:
        return len(self._pods)

    def __getitem__(self, place: Any) -> Any:
        return b'{"Pod":' + self._pods[place] + self._where


def kubernetes_nodes() -> dict[str, Any]:
    """A `v1.NodeList`, every node with the names of the images that it has."""
    nodes = [node(f"gpu-node-{place:03}", GPUS) for place in range(SERVERS)]
    for one in nodes:
        images = [
            {"names": [f"registry/image-{i}@sha256:{i:064x}"], "sizeBytes": i} for i in range(40)
        ]
        one["status"]["images"] = images
    return {"metadata": {}, "items": nodes}


@dataclass
class Found:
    """What came back."""

    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)

    def add(self, status: int, since: float) -> None:
        self.seconds.append(time.perf_counter() - since)
        self.statuses[status] = self.statuses.get(status, 0) + 1

    def latencies_ms(self) -> dict[str, float]:
        of = (50, 90, 99, 100)
        found = np.percentile(self.seconds, of) * 1e3
        return {
            f"p{p}_ms" if p < 100 else "max_ms": float(ms) for p, ms in zip(of, found, strict=True)
        }


class Connections:
    """Connections to one address of this machine, kept alive."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        if not ipaddress.ip_address(self.host).is_loopback:
            raise SystemExit("only services on this machine are loaded")
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and answer; once more where a connection that was idle has been closed."""
        while self._free:
            try:
                return await self._ask(method, path, body)
            except (asyncio.IncompleteReadError, ConnectionError):
                continue
        return await self._ask(method, path, body)

    async def _ask(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        reader, writer = (
            self._free.pop()
            if self._free
            else await asyncio.open_connection(self.host, self.port, limit=2**24)
        )
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        answer = await reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection") == "close":
            writer.close()
        else:
            self._free.append((reader, writer))
        return int(lines[0].split()[1]), answer

    async def resident_bytes(self) -> float:
        _, text = await self.request("GET", "/metrics")
        line = next(x for x in text.decode().splitlines() if x.startswith("process_resident"))
        return float(line.split()[1])


async def load(
    url: str, bodies: list[bytes], rate: float, seconds: float, malformed: int
) -> dict[str, object]:
    """Send `rate` requests a second, the malformed ones evenly among them."""
    connections, good, bad = Connections(url), Found(), Found()
    for body in bodies:
        await connections.request("POST", "/v1/decide", body)
    number = min(int(rate * seconds), MOST_REQUESTS)
    nonsense = set(np.linspace(0, number - 1, malformed).astype(int).tolist())
    memory = [await connections.resident_bytes()]

    async def one(place: int, due: float) -> None:
        wrong = place in nonsense
        body = MALFORMED[place % len(MALFORMED)] if wrong else bodies[place % len(bodies)]
        status, _ = await connections.request("POST", "/v1/decide", body)
        (bad if wrong else good).add(status, due)

    start = time.perf_counter()
    tasks: set[asyncio.Task[None]] = set()
    for place in range(number):
        due = start + place / rate
        await asyncio.sleep(max(due - time.perf_counter(), 0.0))
        task = asyncio.create_task(one(place, due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if place and place % max(number // 10, 1) == 0:
            memory.append(await connections.resident_bytes())
    await asyncio.gather(*tasks)
    memory.append(await connections.resident_bytes())
    return {
        "requests": number,
        "seconds": time.perf_counter() - start,
        **good.latencies_ms(),
        "statuses": good.statuses,
        "malformed_statuses": bad.statuses,
        "resident_mib": [round(value / 2**20, 1) for value in memory],
    }


async def closed_loop(
    url: str, bodies: Sequence[bytes], clients: int, seconds: float, path: str = "/v1/decide"
) -> dict[str, object]:
    """`clients` clients, each of which asks again as soon as it is answered."""
    connections, found = Connections(url), Found()
    start = time.perf_counter()

    async def one(client: int) -> None:
        place = client
        while (since := time.perf_counter()) < start + seconds and place < MOST_REQUESTS:
            body = bodies[place % len(bodies)]
            status, _ = await connections.request("POST", path, body)
            found.add(status, since)
            place += clients

    await asyncio.gather(*(one(client) for client in range(clients)))
    took = time.perf_counter() - start
    number = len(found.seconds)
    return {
        "clients": clients, "requests": number, "seconds": took, "per_s": number / took,
        **found.latencies_ms(), "statuses": found.statuses,
    }  # fmt: skip


async def kubernetes_load(url: str, whole: bool, clients: int, seconds: float) -> dict[str, object]:
    """`clients` kube-schedulers that ask about pods as fast as they are answered."""
    nodes = kubernetes_nodes()
    names = [one["metadata"]["name"] for one in nodes["items"]]
    shown = json.dumps({"nodes": nodes, "pods": {"items": []}}).encode()
    status, _ = await Connections(url).request("POST", "/kubernetes/snapshot", shown)
    if status != 200:
        raise SystemExit(f"a snapshot of {len(shown)} bytes is answered with {status}")
    texts = [json.dumps(one, separators=(",", ":")).encode() for one in (nodes, names)]
    bodies = FilterRequests(*((texts[0], b"null") if whole else (b"null", texts[1])))
    found = await closed_loop(url, bodies, clients, seconds, "/kubernetes/filter")
    return {"body_bytes": len(bodies[0]), **found}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--malformed", type=int, default=100)
    parser.add_argument("--clients", type=int, help="in a closed loop, in place of a rate")
    parser.add_argument("--kubernetes", choices=["whole", "names"], help="nodes of its requests")
    given = parser.parse_args()
    if given.kubernetes:
        clients, whole = given.clients or 8, given.kubernetes == "whole"
        print(json.dumps(asyncio.run(kubernetes_load(given.url, whole, clients, given.seconds))))
        return 0
    bodies = states()
    message = [json.loads(body) for body in bodies]
    running = np.mean([sum("holds" in job for job in state["jobs"]) for state in message])
    waiting = np.mean([len(state["waiting"]) for state in message])
    print(f"{len(bodies)} states: {running:.0f} jobs run, {waiting:.0f} wait", file=sys.stderr)
    seconds = min(given.seconds, MOST_SECONDS)
    if given.clients:
        run = closed_loop(given.url, bodies, min(given.clients, MOST_CLIENTS), seconds)
    else:
        run = load(given.url, bodies, given.rate, seconds, given.malformed)
    print(json.dumps(asyncio.run(run)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
