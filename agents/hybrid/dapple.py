"""DAPPLE's planner: which layers, on how many devices, on which machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from agents.hybrid.choice import Limited, best_of_limits
from agents.hybrid.machines import Groups, HybridSolver, Rates, few_groups, planned, servers_of
from agents.hybrid.pipedream import Cuts
from agents.pipeline.published import early_backward, one_f_one_b
from agents.solver import Budget, Result
from envs.arrays import FloatArray, IntArray, sums_before
from envs.compilation import clock, compiled
from envs.hybrid.plan import HybridPlan, Stage, ordered
from envs.hybrid.problem import HybridProblem
from envs.hybrid.simulation import pipeline_of
from envs.hybrid.timing import all_reduce_seconds
from envs.step.pipeline import play

_ROUNDING = 1 + 1e-12  # of limits that a stage just keeps to
_NONE = -1


PlacedStage = tuple[int, int, int]  # first cut, end, step


class Weights(NamedTuple):
    """What is known of groups and cuts, and what a plan costs besides its slowest stage.

    U steps and V arcs of `Groups`, S + 1 cuts. All seconds and bytes are of all micro-batches
    together, but `saved`.
    """

    size: FloatArray  # (U,) devices of a step's group, descending
    summed: FloatArray  # (U,) seconds per byte of gradients
    moved: FloatArray  # (V,) seconds per byte of activations
    gradients: FloatArray  # (S + 1,) bytes up to a cut, where a stage ends there
    state: FloatArray  # (S + 1,) bytes of each replica up to a cut
    saved: FloatArray  # (S + 1,) bytes up to a cut for each micro-batch under way
    capacity: float  # bytes of a device
    passes: float  # transfers of a cut's bytes must keep to the limit together
    rounds: float  # micro-batches
    through: float  # share of a stage's seconds that the first micro-batch adds
    over: float  # share of a transfer's


def speeds(groups: Groups, rates: Rates) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The first three columns of `Weights`."""
    steps = [step.group for step in groups.steps]
    return (
        np.array([float(sum(group)) for group in steps]),
        np.array([rates.summing(group) for group in steps]),
        np.array([rates.moving(steps[a], steps[b]) for a, b in groups.arcs]),
    )


def limits(cuts: Cuts, weights: Weights) -> FloatArray:
    """What a slowest stage or transfer can take, ascending."""
    work = (cuts.seconds - cuts.seconds[:, None])[cuts.before]
    stages = work[:, None] / np.unique(weights.size)
    transfers = weights.passes * cuts.sent[:, None] * np.unique(weights.moved)
    return np.unique(np.concatenate([stages.ravel(), transfers.ravel()]))


def solver(
    cuts: Cuts, groups: Groups, weights: Weights
) -> Callable[[float], Limited[list[PlacedStage]] | None]:
    """Makes the plan of a limit with the fewest seconds besides its slowest stage.

    Its stages and transfers take no longer than the limit; None: there is none. Of two rests that
    sum late and little, or early and much, the one with the smaller sum is kept.
    """
    arcs = np.array(groups.arcs, dtype=np.int64).reshape(-1, 2)
    order = np.argsort(arcs[:, 0], kind="stable")
    pointer = sums_before(np.bincount(arcs[:, 0], minlength=len(groups.steps)))
    behind = np.ascontiguousarray(arcs[order, 1])
    first = np.array(groups.first, dtype=np.int64)
    sorted_weights = weights._replace(moved=weights.moved[order])

    def solve(limit: float) -> Limited[list[PlacedStage]] | None:
        cost, late, top, end, following = _rests(limit, cuts, sorted_weights, pointer, behind)
        total = cost[0, first] + late[0, first]
        start = int(np.argmin(total))
        if not np.isfinite(total[start]):
            return None
        stages: list[PlacedStage] = []
        cut, step = 0, int(first[start])
        while cut != len(cuts.seconds) - 1:
            stages.append((cut, int(end[cut, step]), step))
            cut = stages[-1][1]
            step = int(following[cut, step])
        return Limited(float(top[0, first[start]]), float(total[start]), stages)

    return solve


@compiled
def _rests(
    limit: float,
    cuts: Cuts,
    weights: Weights,
    pointer: IntArray,
    following: IntArray,
) -> tuple[FloatArray, FloatArray, FloatArray, IntArray, IntArray]:
    """Of the rests that begin at a cut with a step: (S + 1, U) each.

    The seconds that add up; those by which sums of gradients end late; those of the slowest stage
    or transfer; where the first stage ends; and, for a stage of this step that ends at this cut,
    the step behind it.
    """
    seconds, size, rounds = cuts.seconds, weights.size, weights.rounds
    last, steps = len(seconds) - 1, len(size)
    cost, late = np.full((last + 1, steps), np.inf), np.zeros((last + 1, steps))
    top, behind_top = np.zeros((last + 1, steps)), np.zeros((last + 1, steps))
    end = np.full((last + 1, steps), _NONE)
    behind_cost = np.full((last + 1, steps), np.inf)  # of the best rest after a stage of a step
    behind_late = np.zeros((last + 1, steps))
    depth = np.zeros((last + 1, steps), dtype=np.int64)  # stages of that rest
    own = np.zeros((last + 1, steps), dtype=np.int64)
    best_step = np.full((last + 1, steps), _NONE)
    behind_cost[last] = 0.0
    for k in range(last - 1, -1, -1):
        for j in range(k + 1, last + 1):
            work = seconds[j] - seconds[k]
            if not cuts.before[k, j]:
                continue
            owed = weights.gradients[j] - cuts.parameters[k]
            held = weights.state[j] - weights.state[k]
            kept = weights.saved[j] - weights.saved[k]
            for u in range(steps):
                if work > limit * size[u] * _ROUNDING:
                    break
                under_way = min(depth[j, u] + 1.0, rounds)
                if (
                    behind_cost[j, u] == np.inf
                    or held + under_way * kept / size[u] > weights.capacity
                ):
                    continue
                total = behind_cost[j, u] + work / size[u] * weights.through
                delay = max(behind_late[j, u], owed * weights.summed[u])
                if total + delay < cost[k, u] + late[k, u]:
                    cost[k, u], late[k, u] = total, delay
                    top[k, u] = max(behind_top[j, u], work / size[u])
                    end[k, u], own[k, u] = j, depth[j, u] + 1
        if k == 0:
            break
        for u in range(steps):
            for arc in range(pointer[u], pointer[u + 1]):
                v = following[arc]
                move = weights.moved[arc] * cuts.sent[k]
                if cost[k, v] == np.inf or weights.passes * move > limit * _ROUNDING:
                    continue
                total = cost[k, v] + move * weights.over
                delay = max(0.0, late[k, v] - limit / rounds)
                if total + delay < behind_cost[k, u] + behind_late[k, u]:
                    behind_cost[k, u], behind_late[k, u] = total, delay
                    behind_top[k, u] = max(top[k, v], weights.passes * move)
                    depth[k, u], best_step[k, u] = own[k, v], v
    return cost, late, top, end, best_step


def pivot_latency(
    forward: Sequence[float], backward: Sequence[float], summed: Sequence[float], micro_batches: int
) -> float:
    """Seconds of a step of stages and, as stages of their own, transfers between them.

    Warm-up until the pivot's first micro-batch is through, steady while the pivot works without a
    pause, end with the backward passes left and the sums of gradients. The pivot is the last stage,
    but for a stage before it whose own work takes longer than the pivot's and what lies between
    them.

    Args:
        forward, backward: (S,) seconds of a micro-batch.
        summed: (S,) seconds of the sum of gradients.
        micro_batches: M.

    Source:
        Fan et al., "DAPPLE", PPoPP 2021, section 4.1.
    """
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    pivot = len(both) - 1
    for stage in range(pivot, -1, -1):
        between = sum(both[stage + 1 : pivot])
        if (micro_batches - 1) * both[stage] > (micro_batches - 1) * both[pivot] + between:
            pivot = stage
    end = max(
        more + sum(backward[stage : pivot + 1]) - sum(backward[pivot + 1 : stage])
        for stage, more in enumerate(summed)
    )
    return sum(forward[: pivot + 1]) + (micro_batches - 1) * both[pivot] + end


class Dapple(HybridSolver):
    """Stages of replicas, without shards, by DAPPLE's planner, in its early-backward order.

    Groups come from the three policies of placement, of bunches of 2, 4, ... devices where there
    are too many others. For every limit on the slowest stage that may pay, the plan with the least
    else to wait for is made, as if all machines were alike and as slow as the slowest link; of
    those that fit the memory, the one with the least pivot latency on the real devices is kept.
    Where none fits, all stages recompute. The order is policy A (1F1B), or B (more warm-up) where
    that is faster and fits.

    Guarantees:
        None.

    Source:
        Fan et al., "DAPPLE", PPoPP 2021, sections 3 and 4.
    """

    def _solve(self, problem: HybridProblem, budget: Budget) -> Result[HybridPlan]:
        """`Budget.evaluations` counts limits on stages."""
        end_s = clock() + budget.seconds
        servers = servers_of(problem.topology)
        groups = few_groups([len(server) for server in servers])
        evaluations = 0
        for recompute in (False, True):
            best: tuple[float, HybridPlan] | None = None
            cuts, weights = _planned(problem, groups, recompute)
            for found in best_of_limits(
                solver(cuts, groups, weights), limits(cuts, weights),
                1.0 - 1.0 / problem.micro_batches, end_s, budget.evaluations,
            ):  # fmt: skip
                evaluations += 1
                stages = [
                    Stage(first, end, groups.steps[step].devices(servers), recompute=recompute)
                    for first, end, step in found.plan
                ]
                plan = ordered(stages, problem.micro_batches, one_f_one_b)
                seconds = predicted_seconds(problem, plan)
                if (best is None or seconds < best[0]) and not plan.violations(problem):
                    best = seconds, plan
            if best is not None:
                return planned(_earlier(problem, best[1]), best[0], evaluations)
        reason = "no plan that was made fits the memory"
        return Result(None, "limit", evaluations=evaluations, reason=reason)


def predicted_seconds(problem: HybridProblem, plan: HybridPlan) -> float:
    """The pivot latency of a plan on the devices of the problem."""
    pipeline = pipeline_of(problem, plan)
    moved = pipeline.communication if isinstance(pipeline.communication, tuple) else ()
    rows: list[tuple[float, float, float]] = []
    for number, stage in enumerate(plan.stages):
        backward = pipeline.input_gradient[number] + pipeline.weight_gradient[number]
        nbytes = float(problem.gradient_bytes[stage.first : stage.end].sum())
        summed_in = all_reduce_seconds(problem, stage, nbytes)
        rows.append((pipeline.forward[number], backward, summed_in))
        rows += [(seconds, seconds, 0.0) for seconds in moved[number : number + 1]]
    forward, back, summed = zip(*rows, strict=True)
    return pivot_latency(forward, back, summed, problem.micro_batches)


def _earlier(problem: HybridProblem, plan: HybridPlan) -> HybridPlan:
    """The plan in the order of policy B, where that fits and is faster."""
    pipeline = pipeline_of(problem, plan)
    early = ordered(plan.stages, plan.micro_batches, early_backward)
    faster = play(pipeline, early.orders).makespan < play(pipeline, plan.orders).makespan
    return early if faster and not early.violations(problem) else plan


def _planned(problem: HybridProblem, groups: Groups, recompute: bool) -> tuple[Cuts, Weights]:
    """The problem's columns for all micro-batches, on devices that are alike."""
    count = problem.micro_batches
    passes = (1 + recompute) * problem.forward + problem.input_gradient + problem.weight_gradient

    cuts = Cuts.in_a_row(problem, count * passes.mean(axis=1), count)
    weights = Weights(
        *speeds(groups, Rates.slowest(problem.topology)), cuts.parameters,
        state=sums_before(problem.state_bytes),
        saved=sums_before((not recompute) * problem.saved_bytes),
        capacity=float(problem.capacity.min()),
        passes=2.0, rounds=float(count), through=1.0 / count, over=2.0 / count,
    )  # fmt: skip
    return cuts, weights
