"""Share rules that give jobs any number of GPUs, for gangs of fixed size: AFS-L and Optimus.

A gang of z GPUs to which such a rule gives w holds its z GPUs for w / z of the time, in rounds.
Both make progress w / z where the speed of a job is linear in its GPUs up to its gang, which is
therefore assumed. All GPUs are alike.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np

from agents.cluster.prediction import RemainingTime
from agents.cluster.shares import Demand, ShareRule
from agents.solver import Knowledge
from envs.arrays import FloatArray, IntArray
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.compilation import compiled


class ApatheticFutureShare(ShareRule):
    """Hands out the GPUs one by one, each to the winner of all pairwise comparisons.

    AFS-L of the paper; its measured speed-up curves have no counterpart. Were gangs compared as
    wholes, the rule would be the shortest remaining time first.

    Guarantees:
        None: the paper shows its rule better than the shortest remaining time first by experiment.

    Source:
        Hwang, Kim, Kim, Shin, Park, "Elastic Resource Sharing for Distributed Deep Learning",
        NSDI 2021.
    """

    name = "afs"
    knows: Knowledge = "durations"

    def shares(self, demand: Demand) -> FloatArray:
        return whole_gpus(demand, demand.records["remaining"], apathetic_gpus)


@compiled
def apathetic_gpus(service: FloatArray, gangs: IntArray, gpus: int) -> IntArray:
    """(A,) GPUs of each job: the paper's comparison of two jobs, for speeds w / gang.

    Of two jobs without a GPU the one with less service left wins. Else, with a the one that would
    finish earlier on its present GPUs and b the other, b wins the next GPU if its relative gain
    with it, (p_b' - p_b) / p_b', exceeds (p_a' - p_a) / p_a: 1 / (w_b + 1) > 1 / w_a.

    Args:
        service: (A,) GPU-seconds left.
        gangs: (A,) GPUs beyond which a job is no faster.
        gpus: how many there are.
    """
    given = np.zeros(len(gangs), np.int64)
    for _ in range(min(gpus, gangs.sum())):
        winner = -1
        for job in range(len(gangs)):
            if given[job] == gangs[job]:
                continue
            if winner < 0:
                winner = job
                continue
            w_job, w_winner = given[job], given[winner]
            if w_job == 0 and w_winner == 0:
                if service[job] < service[winner]:
                    winner = job
                continue
            job_first = w_job > 0 and (
                w_winner == 0 or service[job] / w_job < service[winner] / w_winner
            )
            a, b = (job, winner) if job_first else (winner, job)
            winner = b if given[b] + 1 < given[a] else a
        given[winner] += 1
    return given


class Optimus(ShareRule):
    """Hands out the GPUs one by one, each to the job whose remaining time it shortens most.

    One GPU each in the order of submission, then by marginal gain (section 4.1 of the paper): Q / w
    - Q / (w + 1) for a job with w GPUs and Q predicted GPU-seconds left. Its fitted speed function
    has no counterpart, and neither have its loss curves: Q comes from the durations of finished
    jobs.

    Guarantees:
        None: greedy in what it predicts.

    Source:
        Peng, Bao, Chen, Wu, Guo, "Optimus: An Efficient Dynamic Resource Scheduler for Deep
        Learning Clusters", EuroSys 2018.

    Args:
        remaining: predicts what is left of a job.
    """

    name = "optimus"
    knows: Knowledge = "predictions"

    def __init__(self, remaining: RemainingTime = RemainingTime()) -> None:
        self.remaining = deepcopy(remaining)

    def reset(self, simulator: ClusterSimulator) -> None:
        self.remaining.reset(simulator)

    def shares(self, demand: Demand) -> FloatArray:
        self.remaining.observe(demand.simulator)
        seconds = self.remaining.predict(demand.simulator, demand.jobs)
        return whole_gpus(demand, seconds, gainful_gpus)


@compiled
def gainful_gpus(service: FloatArray, gangs: IntArray, gpus: int) -> IntArray:
    """(A,) GPUs of each job; where all have one, they minimise the sum of remaining times.

    Args:
        service: (A,) GPU-seconds left.
        gangs: (A,) GPUs beyond which a job is no faster.
        gpus: how many there are.
    """
    given = np.zeros(len(gangs), np.int64)
    given[:gpus] = 1
    gain = np.where(given < gangs, service / 2.0, -1.0)
    for _ in range(min(gpus, gangs.sum()) - given.sum()):
        job = int(np.argmax(gain))
        given[job] += 1
        w = given[job]
        gain[job] = service[job] / (w * (w + 1)) if w < gangs[job] else -1.0
    return given


def whole_gpus(
    demand: Demand, seconds: FloatArray, hand_out: Callable[[FloatArray, IntArray, int], IntArray]
) -> FloatArray:
    """(A, 1) shares where GPUs of one pool are handed out one by one.

    Args:
        demand: of A jobs.
        seconds: (A,) that they have left.
        hand_out: (A,) GPUs of each job, of its GPU-seconds left, its gang, and so many GPUs in all.
    """
    gangs = np.ceil(demand.gpus).astype(np.int64)
    given = hand_out(seconds * gangs, gangs, int(demand.capacity[0]))
    shares: FloatArray = np.where(demand.rates > 0.0, (given / gangs)[:, None], 0.0)
    return shares
