"""`BandwidthInstance`: a placed training step whose network is to be shared, and its reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.errors import InputError
from envs.graphs.op_graph import Phase
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from envs.step.timeline import Timeline


class PhaseCut(Protocol):
    """Cuts the order of a plan.

    Phase p of a step begins when all operators at positions before `begins[p]` of the order have
    ended.
    """

    @property
    def most(self) -> int:
        """The largest P."""

    def __call__(self, problem: StepProblem, plan: Plan) -> IntArray:
        """(P,) first position of each phase: 0, then rising, all below N; 1 <= P <= `most`."""


class PassBoundaries:
    """At the first backward operator, after the last forward operator, at the first update.

    In a pipeline these are its filling, its steady state, its draining, and the rest from the first
    update on. Phases without operators are left out.
    """

    most = 4

    def __call__(self, problem: StepProblem, plan: Plan) -> IntArray:
        """(P,) first position of each phase, P <= 4."""
        phase = problem.graph.phase[plan.order]
        cuts = {0}
        forward = np.flatnonzero(phase == Phase.FORWARD)
        if len(forward):
            cuts.add(int(forward[-1]) + 1)
        for part in (Phase.BACKWARD, Phase.OPTIMIZER):
            found = np.flatnonzero(phase == part)
            if len(found):
                cuts.add(int(found[0]))
        return np.array(sorted(cuts - {len(phase)}), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class BandwidthInstance:
    """One placed and ordered step, cut into P phases, and what uniform shares make of it."""

    problem: StepProblem
    plan: Plan
    begins: IntArray  # (P,) first position of each phase, see `PhaseCut`
    traffic: PhaseTraffic
    uniform_rate: FloatArray  # (C,) bytes/s: `uniform_allocation`
    uniform: Timeline  # of the whole step at those rates
    uniform_begin_s: FloatArray  # (P + 1,) when each phase begins at those rates; the step time

    @classmethod
    def build(cls, problem: StepProblem, plan: Plan, cut: PhaseCut) -> BandwidthInstance:
        """Cut `plan` and play it with uniform static shares.

        Raises:
            InputError: the plan breaks a rule of `Plan.violations` other than the peak memory's,
                nothing passes between servers, a link class between servers has no bandwidth, or
                the step takes no time.
        """
        name = f"graph {problem.graph.name}"
        violations = plan.placement.violations(problem)
        if violations:
            raise InputError("; ".join(violations), file=name, field="placement")
        begins = cut(problem, plan)
        rates = uniform_allocation(problem.topology.network)
        through = allocated_problem(problem, rates)
        uniform = StepSimulator(through).run(plan.placement.device, plan.order)
        traffic = phase_traffic(problem, plan, begins)
        if not traffic.count.any():
            raise InputError("nothing is sent between servers", file=name)
        if not 0.0 < uniform.step_time < np.inf:
            raise InputError(f"a step takes {uniform.step_time} s", file=name)
        ended = np.maximum.accumulate(uniform.op_finish[plan.order])
        starts = np.append(0.0, ended)[begins]
        return cls(
            problem, plan, begins, traffic, rates.rate, uniform, np.append(starts, ended[-1])
        )

    @property
    def num_phases(self) -> int:
        return len(self.begins)

    @property
    def uniform_phase_s(self) -> FloatArray:
        """(P,) seconds of each phase with uniform static shares."""
        return np.diff(self.uniform_begin_s)


@dataclass(frozen=True, eq=False)
class PhaseTraffic:
    """What passes each pipe in each of P phases.

    The pipe from server s to server e has number s x S + e. A tensor is sent once to every
    receiving device and belongs to the phase of its producer. Tensors without bytes are no
    transfers.
    """

    volume: FloatArray  # (P, S * S) bytes
    count: IntArray  # (P, S * S) transfers


def phase_of(order: IntArray, begins: IntArray) -> IntArray:
    """(N,) the phase of every operator; `begins` (P,) as in `PhaseCut`."""
    phase = np.empty(len(order), dtype=np.int64)
    phase[order] = np.searchsorted(begins, np.arange(len(order)), side="right") - 1
    return phase


def phase_traffic(problem: StepProblem, plan: Plan, begins: IntArray) -> PhaseTraffic:
    """The traffic of `plan` cut at `begins` (P,).

    The bytes of a tensor are those its transfer time tells of: (seconds - latency) x bandwidth of
    its link class.
    """
    graph, topology = problem.graph, problem.topology
    device, server, servers = plan.placement.device, topology.server, topology.num_servers
    u, v, tensor = graph.edges.T
    across = server[device[u]] != server[device[v]]
    deliveries = np.unique(tensor[across] * topology.num_devices + device[v[across]])
    tensor, target = deliveries // topology.num_devices, deliveries % topology.num_devices
    source = device[graph.producer[tensor]]
    kind = topology.link_class[source, target]
    moving = problem.transfer_seconds[tensor, kind] - topology.class_latency[kind]
    bandwidth = topology.class_bandwidth[kind]
    sent = moving > 0.0
    nbytes = moving[sent] * bandwidth[sent]
    pipe = (server[source] * servers + server[target])[sent]
    phase = phase_of(plan.order, begins)[graph.producer[tensor[sent]]]
    volume = np.zeros((len(begins), servers * servers))
    count = np.zeros((len(begins), servers * servers), dtype=np.int64)
    np.add.at(volume, (phase, pipe), nbytes)
    np.add.at(count, (phase, pipe), 1)
    return PhaseTraffic(volume, count)
