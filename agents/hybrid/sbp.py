"""Data and tensor parallelism without a pipeline: every device has a part of every layer."""

from __future__ import annotations

import numpy as np

from agents.hybrid.machines import HybridSolver, planned
from agents.pipeline.published import one_f_one_b
from agents.solver import Budget, Result
from envs.hybrid.plan import HybridPlan, HybridProblem, Stage, ordered
from envs.hybrid.timing import all_reduce_seconds, stage_seconds


class SBP(HybridSolver):
    """One stage on all devices: replicas, each shared by tensor shards.

    The signatures of operators are those of `HybridProblem.sharding`, the best ones for every
    degree (`agents.hybrid.sharding`): within a replica what is split, broadcast or a partial sum;
    between replicas rows are split and gradients are partial sums. All degrees that divide the
    devices are tried; shards are next to each other in their server. One micro-batch is there at a
    time, so that computing activations again would save nothing.

    Guarantees:
        The degree is the best that fits, under the formula
        M (forward + backward pass of a micro-batch) + sum of gradients + update.

    Source:
        Yuan et al., "OneFlow: Redesign the Distributed Deep Learning Framework from Scratch",
        arXiv 2110.15032.
    """

    def _solve(self, problem: HybridProblem, budget: Budget) -> Result[HybridPlan]:
        """The few plans there are are all looked at."""
        devices = np.argsort(problem.topology.server, kind="stable").tolist()
        best: HybridPlan | None = None
        predicted, tried = np.inf, 0
        for shards in problem.sharding.degrees:
            if len(devices) % shards:
                continue
            stage = Stage(0, problem.num_layers, tuple(devices), shards)
            plan = ordered((stage,), problem.micro_batches, one_f_one_b)
            seconds, tried = one_stage_seconds(problem, stage), tried + 1
            if seconds < predicted and not plan.violations(problem):
                best, predicted = plan, seconds
        if best is None:
            reason = "no replicas and shards of the whole model fit the memory"
            return Result(None, "infeasible", evaluations=tried, reason=reason)
        return planned(best, predicted, tried)


def one_stage_seconds(problem: HybridProblem, stage: Stage) -> float:
    """Seconds of a step whose one stage has all layers."""
    row = problem.sharding.degrees.index(stage.shards)
    held = float((problem.gradient_bytes * problem.sharding.state[row]).sum())
    passes = problem.micro_batches * stage_seconds(problem, stage).total
    update = (problem.sharding.state[row][:, None] * problem.update)[:, stage.devices]
    return passes + all_reduce_seconds(problem, stage, held) + float(update.sum(axis=0).max())
