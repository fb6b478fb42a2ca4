"""Dynamic programming over contiguous splits: the line of stages with the smallest largest load."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from agents.partition.ideals.items import Items
from agents.partition.ideals.search import (
    Effort,
    LoadResult,
    best_split,
    compile_kernels,
    shortest_calls,
)
from agents.solver import Budget, Result
from agents.step.fitting import Fitting, shapes
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import PartitionIncumbent, StepAndPartitionSolver, StepIncumbent
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, bounded
from envs.graphs.contraction import sum_rows
from envs.graphs.op_graph import NONE
from envs.partition.problem import HostTraffic, MaxLoadProblem, PartitionProblem
from envs.step.plans import Plan
from envs.step.problem import StepProblem

_HALVINGS = 3  # numbers of groups: the one given, half and a quarter of it


@bounded
@dataclass(frozen=True, eq=False, kw_only=True)
class ContiguousDP(StepAndPartitionSolver):
    """The exact optimum of the contiguous max-load problem, and plans made of such splits.

    Dynamic programming over the ideals of the forward graph. Here the load is bisected and every
    search is pruned by its limit (`ideals.kernel`), so that not all pairs of ideals are looked at
    and none is stored.

    Asked for a partition, it solves the contiguous max-load problem, exactly where every optimizer
    operator is co-located with a forward or backward one; where the graph has more than `ideals`
    ideals, it makes the best split along a few topological orders, with a bound from compute alone.
    The split is also a plan for the max-load problem without contiguity. The latency problem is
    offered the max-load splits for every number of accelerators, and the line of calls whose
    durations have the smallest sum (`ideals.search.shortest_calls`).

    Asked for a step, it makes the split of the fused graph that a pipeline would run best, for
    several numbers of groups and of devices and several prices of transfers, twice round the
    devices and there and back where an order is allowed that is made for it, and keeps the one
    whose step is shortest in the best order. `Fitting` says what happens when memory is short.

    Guarantees:
        For max-load the proved optimum of contiguous splits, where the lattice of ideals is small
        enough; for a step none.

    Source:
        Tarnawski, Phanishayee, Devanur, Mahajan, Nina Paravecino, "Efficient Algorithms for Device
        Placement of DNN Graph Operators", NeurIPS 2020, section 5.1; pipelines as in Narayanan et
        al., "PipeDream", SOSP 2019, and Fan et al., "DAPPLE", PPoPP 2021.

    Args:
        ideals: the largest lattice that is searched.
        groups: groups of the fused graph, for steps; half and a quarter as many are tried too.
    """

    ideals: Count = 200000
    groups: int = 64

    def _partition(self, problem: PartitionProblem, budget: Budget) -> Result[Plan]:
        """`Budget.evaluations` counts pairs of ideals."""
        compile_kernels()
        incumbent = PartitionIncumbent(problem)
        effort = Effort(time.perf_counter() + budget.seconds, budget.evaluations)
        if isinstance(problem, MaxLoadProblem):
            return self._max_load(problem, incumbent, effort)
        return self._single_calls(problem, incumbent, effort)

    def _max_load(
        self, problem: MaxLoadProblem, incumbent: PartitionIncumbent, effort: Effort
    ) -> Result[Plan]:
        everything = np.arange(problem.step.topology.num_devices)
        items = Items.build(problem.step, problem.precedence, problem.traffic, everything)
        found = best_split(items, self.ideals, effort)
        incumbent.evaluations = found.pairs
        if found.split is not None:
            incumbent.offer(found.split.device(items))
        if not problem.contiguous:
            return _with_remarks(
                incumbent.result(), "the best contiguous split; others may be better"
            )
        if not items.exact:
            remark = "operators of the optimizer were put with their inputs"
            return _with_remarks(incumbent.result(), remark)
        if found.split is None and np.isinf(found.lower):
            incumbent.impossible = "no contiguous split fits the devices"
            return incumbent.result()
        incumbent.prove(min(found.lower, incumbent.step_time))
        result = incumbent.result()
        return _with_remarks(result, *_remarks(result, found))

    def _single_calls(
        self, problem: PartitionProblem, incumbent: PartitionIncumbent, effort: Effort
    ) -> Result[Plan]:
        """The best of lines of calls, and of max-load splits for every number of accelerators."""
        host = np.array([problem.host] if problem.host != NONE else [], dtype=np.int64)
        accelerators = np.delete(np.arange(problem.step.topology.num_devices), host)
        pairs = 0
        if len(accelerators):
            pairs = self._offer_calls(problem, accelerators, incumbent, effort)
        for count in range(len(accelerators), -1, -1):
            for used in (accelerators[:count], np.append(accelerators[:count], host)):
                if len(used) and not effort.spent(pairs):
                    items = self._items(problem, used)
                    found = best_split(items, self.ideals, effort.after(pairs))
                    pairs += found.pairs
                    if found.split is not None:
                        incumbent.offer(found.split.device(items))
        incumbent.evaluations = pairs
        return _with_remarks(incumbent.result(), "the best of lines of calls")

    def _offer_calls(
        self,
        problem: PartitionProblem,
        accelerators: IntArray,
        incumbent: PartitionIncumbent,
        effort: Effort,
    ) -> int:
        """Offer the shortest line of calls with the host and without it; the pairs looked at."""
        items = self._items(problem, accelerators)
        pairs = 0
        for host in dict.fromkeys((problem.host, NONE)):
            seconds = np.full(items.count, np.inf)
            if host != NONE:
                seconds = np.bincount(items.of, weights=problem.step.op_seconds[:, host])
            found, more = shortest_calls(items, seconds, self.ideals, effort.after(pairs))
            pairs += more
            if found is not None:
                incumbent.offer(found.device(items, host))
            elif not effort.spent(pairs):  # no line fits: one call with everything says why
                incumbent.offer(np.full(len(items.of), accelerators[0]))
        return pairs

    def _items(self, problem: PartitionProblem, devices: IntArray) -> Items:
        """All edges bind: a call may not feed what it waits for."""
        edges = problem.step.graph.edges[:, :2]
        return Items.build(problem.step, edges, problem.traffic, devices)

    def compile(self, problem: StepProblem) -> None:
        compile_kernels()

    def _plan(self, incumbent: StepIncumbent, budget: Budget) -> str:
        """`Budget.evaluations` counts pairs of ideals."""
        effort = Effort(time.perf_counter() + budget.seconds, budget.evaluations)
        if incumbent.group(self.groups) is None:
            return ""
        pairs = 0

        def attempt(
            pipeline: _Pipeline, grouped: GroupedProblem, room: FloatArray
        ) -> tuple[IntArray, None] | None:
            nonlocal pairs
            items = pipeline.items(grouped, room)
            found = best_split(items, self.ideals, effort.after(pairs))
            pairs += found.pairs
            if found.split is None and incumbent.evaluations == 0:
                found = best_split(items, 0, Effort(np.inf, None))  # along a few orders: at once
            if found.split is None:
                return None
            device = np.empty(grouped.num_groups, np.int64)
            device[grouped.fusion.piece_group] = found.split.device(items)
            return device, None

        fitting = Fitting(incumbent, Budget(budget.seconds), spent=lambda: effort.spent(pairs))
        for pipeline in self._pipelines(incumbent):
            if not fitting.goes_on:
                break
            fitting.run(pipeline.grouped, partial(attempt, pipeline))
        fitting.insist()
        return "" if incumbent.plan else "no contiguous split was found to fit"

    def _pipelines(self, incumbent: StepIncumbent) -> Iterator[_Pipeline]:
        """All devices with each way to group and to price messages, then fewer devices.

        Then the shapes that the orders are made for, and while there is no plan more groups.
        """
        pipelines = []
        for groups in dict.fromkeys(max(self.groups >> halved, 1) for halved in range(_HALVINGS)):
            grouped = incumbent.group(groups)
            if grouped is not None:
                line = grouped.device_order()
                for traffic in _prices(grouped.problem):
                    pipelines.append(_Pipeline(grouped, traffic, line))
                    yield pipelines[-1]
        for pipeline in pipelines:
            for line in list(shapes(incumbent.problem, pipeline.line))[1:]:
                yield replace(pipeline, line=line)
        for count in _fewer(incumbent.problem.topology.num_devices):
            for pipeline in pipelines:
                yield replace(pipeline, line=pipeline.line[:count])
        groups = 2 * self.groups
        while incumbent.plan is None and groups < 2 * incumbent.problem.graph.num_operators:
            grouped = incumbent.group(groups)
            if grouped is not None:
                yield _Pipeline(grouped, next(_prices(grouped.problem)), grouped.device_order())
            groups *= 2


@dataclass(frozen=True, eq=False)
class _Pipeline:
    """The pieces of a fused graph on some devices, the first of the line first."""

    grouped: GroupedProblem
    traffic: HostTraffic
    line: IntArray  # (c,) devices

    def items(self, sized: GroupedProblem, room: FloatArray) -> Items:
        """What is divided when the groups hold `sized.state` and devices have `room` (D,) bytes.

        The forward pass goes from group to group in the order of their numbers. Where a group has
        operators at both ends, such as an embedding and the output layer that shares its weights,
        it also goes back: those edges do not bind the line.
        """
        times = np.maximum(np.bincount(self.line, minlength=len(room)), 1)
        step = replace(self.grouped.problem, capacity=room / times)
        precedence = MaxLoadProblem(step, contiguous=True).precedence
        group = self.grouped.fusion.piece_group
        ahead = group[precedence[:, 0]] <= group[precedence[:, 1]]
        items = Items.build(step, precedence[ahead], self.traffic, self.line)
        first = np.unique(group, return_index=True)[1]  # a piece of each group
        held = sum_rows(sized.state, items.of[first], items.count)
        return replace(items, state=held)


def _prices(step: StepProblem) -> Iterator[HostTraffic]:
    """What messages cost between neighbours that are not known yet.

    As if over the fastest link of each device, over the slowest, and nothing, as where transfers
    are hidden behind compute.
    """
    slow = HostTraffic.of(step, NONE)
    fast = slow.seconds.copy()
    for device in range(step.topology.num_devices):
        others = np.delete(step.topology.link_class[device], device)
        if len(others):
            fast[:, device] = step.transfer_seconds[slow.tensor][:, others].min(axis=1)
    known = set()
    for seconds in (fast, slow.seconds, np.zeros_like(fast)):
        if seconds.tobytes() not in known:
            known.add(seconds.tobytes())
            yield replace(slow, seconds=seconds)


def _fewer(devices: int) -> Iterator[int]:
    """Half as many devices, and half as many again, down to one."""
    while devices > 1:
        devices = (devices + 1) // 2
        yield devices


def _with_remarks(result: Result[Plan], *remarks: str) -> Result[Plan]:
    """`result` with `remarks` on its plan, or on why the search has none; a proof stays alone."""
    if result.status == "infeasible":
        return result
    first = () if result.solution is not None else (result.reason,)
    return replace(result, reason="; ".join([*first, *remarks]))


def _remarks(result: Result[Plan], found: LoadResult) -> Iterator[str]:
    """What the bound covers, and why it is not met."""
    yield "the bound is on contiguous placements"
    if result.status == "optimal":
        return
    if not found.whole:
        yield "there are too many ideals, or kinds of devices, for more than a few orders"
    else:
        yield "the search of the ideals was stopped"
