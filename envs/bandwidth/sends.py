"""Transfers by themselves: rounds of sends as a small placed step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.bandwidth.generator import bounds_of
from envs.bandwidth.instance import BandwidthInstance
from envs.cost import link_transfer_seconds
from envs.errors import InputError
from envs.graphs.builder import GraphBuilder
from envs.hardware.topology import Topology
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Send:
    """A message from a device to another one."""

    source: int  # device
    destination: int  # device
    nbytes: float


@dataclass(frozen=True)
class FixedCut:
    """The order cut at given positions."""

    begins: tuple[int, ...]

    @property
    def most(self) -> int:
        """P."""
        return len(self.begins)

    def __call__(self, problem: StepProblem, plan: Plan) -> IntArray:
        """(P,)."""
        del problem, plan
        return np.array(self.begins, dtype=np.int64)


def placed_sends(
    name: str, topology: Topology, phases: Sequence[Sequence[Sequence[Send]]]
) -> tuple[StepProblem, Plan, FixedCut]:
    """A step that computes nothing and sends round after round.

    The sends of a round start together, when all of the round before have arrived; a round of one
    send after another is serial. Waiting costs nothing: it is a message without bytes.

    Args:
        name: of the graph.
        topology: what the messages pass.
        phases: the rounds of each phase.

    Returns:
        The problem, the plan, and the cut at the first round of each phase.

    Raises:
        InputError: a phase or a round is empty, or a send is none: from a device to itself, of no
            bytes, or of a device there is not.
    """
    builder, device, begins = GraphBuilder(name), list[int](), list[int]()
    arrived: list[int] = []  # tensors without bytes: the last round is there
    for phase, rounds in enumerate(phases):
        if not rounds or not all(rounds):
            raise InputError("has a round without sends", file=name, record=f"phase {phase}")
        begins.append(len(device))
        for number, sends in enumerate(rounds):
            label, receivers = f"{phase}.{number}", list[int]()
            for index, send in enumerate(sends):
                _check(send, topology, f"{name} {label}.{index}")
                sender = builder.add_operator(f"send {label}.{index}")
                for tensor in arrived:
                    builder.add_use(tensor, sender)
                receiver = builder.add_operator(f"receive {label}.{index}")
                builder.add_use(builder.add_tensor(sender, send.nbytes), receiver)
                receivers.append(receiver)
                device += [send.source, send.destination]
            arrived = [builder.add_tensor(receiver, 0.0) for receiver in receivers]
    graph = builder.build()
    problem = StepProblem(
        graph=graph,
        topology=topology,
        op_seconds=np.zeros((graph.num_operators, topology.num_devices)),
        transfer_seconds=np.ascontiguousarray(link_transfer_seconds(graph, topology)),
        capacity=topology.memory_bytes,
    )
    plan = Plan(Placement(np.array(device, dtype=np.int64)), np.arange(graph.num_operators))
    return problem, plan, FixedCut(tuple(begins))


class RandomSends:
    """Fresh transfers in every episode: phases of serial or of concurrent sends.

    In each phase a random device sends to random others, messages of bytes that are uniform on a
    logarithmic scale: with even chances one after another or all at once. Where a network has one
    link between servers, the best rates are in proportion to the square root of the bytes in the
    one case and to the bytes in the other.

    Args:
        topology: what the messages pass.
        phases: number of phases.
        sends: fewest and most messages of a phase, each to a device of its own.
        nbytes: smallest and largest message.

    Raises:
        InputError: an argument is out of its range, or the topology has no channel.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        phases: int = 4,
        sends: tuple[int, int] = (2, 3),
        nbytes: tuple[float, float] = (1e6, 1e8),
    ) -> None:
        if phases < 1:
            raise InputError(f"{phases} is below 1", field="phases")
        if not 1 <= sends[0] <= sends[1] < topology.num_devices:
            raise InputError(f"{sends} is no range in 1..{topology.num_devices - 1}", field="sends")
        if not 0.0 < nbytes[0] <= nbytes[1] < np.inf:
            raise InputError(f"{nbytes} is no range of sizes", field="nbytes")
        self.topology, self.phases, self.sends, self.nbytes = topology, phases, sends, nbytes
        self.bounds = bounds_of(topology, FixedCut((0,) * phases))

    def __call__(self, rng: np.random.Generator) -> BandwidthInstance:
        """Random transfers."""
        drawn = [self._phase(rng) for _ in range(self.phases)]
        problem, plan, cut = placed_sends("sends", self.topology, drawn)
        return BandwidthInstance.build(problem, plan, cut)

    def _phase(self, rng: np.random.Generator) -> list[list[Send]]:
        """Rounds of one phase; the first receiver stands in another server than the sender."""
        count = int(rng.integers(*self.sends, endpoint=True))
        source = int(rng.integers(self.topology.num_devices))
        server = self.topology.server
        far = np.flatnonzero(server != server[source])
        first = int(rng.choice(far))
        others = np.setdiff1d(np.arange(self.topology.num_devices), [source, first])
        receivers = [first, *rng.choice(others, count - 1, replace=False).tolist()]
        low, high = np.log(self.nbytes)
        sizes = np.exp(rng.uniform(low, high, count))
        sends = [
            Send(source, receiver, float(size))
            for receiver, size in zip(receivers, sizes, strict=True)
        ]
        return [[send] for send in sends] if rng.random() < 0.5 else [sends]


def _check(send: Send, topology: Topology, record: str) -> None:
    ends = (send.source, send.destination)
    if send.source == send.destination or not all(0 <= end < topology.num_devices for end in ends):
        raise InputError(
            f"is from device {send.source} to {send.destination} of {topology.num_devices}",
            record=record,
        )
    if not 0.0 < send.nbytes < np.inf:
        raise InputError(f"has {send.nbytes} bytes", record=record, field="nbytes")
