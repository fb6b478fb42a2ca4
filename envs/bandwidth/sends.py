"""Transfers by themselves: rounds of sends as a small placed step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
        return len(self.begins)

    def __call__(self, problem: StepProblem, plan: Plan) -> IntArray:
        del problem, plan
        return np.array(self.begins, dtype=np.int64)


def placed_sends(
    name: str, topology: Topology, phases: Sequence[Sequence[Sequence[Send]]]
) -> tuple[StepProblem, Plan, FixedCut]:
    """A step that computes nothing and sends round after round.

    The sends of a round start together, when all of the round before have arrived; a round of one
    send after another is serial. Waiting costs nothing: it is a message without bytes.

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


def _check(send: Send, topology: Topology, record: str) -> None:
    ends = (send.source, send.destination)
    if send.source == send.destination or not all(0 <= end < topology.num_devices for end in ends):
        raise InputError(
            f"is from device {send.source} to {send.destination} of {topology.num_devices}",
            record=record,
        )
    if not 0.0 < send.nbytes < np.inf:
        raise InputError(f"has {send.nbytes} bytes", record=record, field="nbytes")
