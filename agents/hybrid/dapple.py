"""DAPPLE's planner: which layers, on how many devices, on which machines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agents.hybrid.dapple_search import Solver, Weights, limits, speeds
from agents.hybrid.limits import best_of_limits
from agents.hybrid.machines import Groups, Rates, few_groups, servers_of
from agents.hybrid.pipedream import Cuts
from agents.hybrid.solver import HybridSolver, planned
from agents.pipeline.published import early_backward, one_f_one_b
from agents.solver import Budget, Result
from envs.arrays import FloatArray
from envs.compilation import clock
from envs.hybrid.plan import HybridPlan, HybridProblem, Stage, ordered
from envs.hybrid.simulation import pipeline_of
from envs.hybrid.timing import all_reduce_seconds
from envs.step.pipeline import play


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
                Solver(cuts, groups, weights), limits(cuts, weights),
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
    count, layers = problem.micro_batches, problem.num_layers
    passes = (1 + recompute) * problem.forward + problem.input_gradient + problem.weight_gradient

    def before(column: FloatArray) -> FloatArray:
        return np.concatenate([[0.0], np.cumsum(column)])

    gradients = before(problem.gradient_bytes)
    cuts = Cuts(
        before(count * passes.mean(axis=1)), gradients, count * problem.cut_bytes,
        ~np.tri(layers + 1, dtype=np.bool_),
    )  # fmt: skip
    weights = Weights(
        *speeds(groups, Rates.slowest(problem.topology)), gradients, before(problem.state_bytes),
        saved=before((not recompute) * problem.saved_bytes), capacity=float(problem.capacity.min()),
        passes=2.0, rounds=float(count), through=1.0 / count, over=2.0 / count,
    )  # fmt: skip
    return cuts, weights
