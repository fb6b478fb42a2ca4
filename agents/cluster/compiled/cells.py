"""To which cell of a cluster a job is sent, where what schedulers know of the others is late."""

from __future__ import annotations

from math import log, log1p
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.cluster.compiled.durations import Memory, gpu_seconds, left
from envs.arrays import FloatArray, IntArray
from envs.cluster.simulation.cluster_state import NONE, ClusterState
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled_inner
from models.layout import CONTEXTS, FEATURES

Flags = NDArray[np.int8]

# Columns of a summary. GPUs count by the part of each that jobs ask for.
WAITING, WAITING_GPUS, WAITING_WORK, RUNNING, RUNNING_WORK, FREE, LARGEST = range(7)
SUMMARY_WIDTH = 7
SENT, SENT_GPUS, SENT_WORK = range(3)  # columns of what has been sent
SENT_WIDTH = 3
LEARNED, BY_SIZE, SHORTEST_QUEUE, LEAST_WORK = range(4)  # `Choice.rule`


class Choice(NamedTuple):
    """How a scheduler chooses among cells; plain numbers and weights."""

    rule: int
    candidates: int  # cells that are drawn for a job, of which the best is taken
    speed: bool  # whether the speed of a cell's GPUs counts, in rules without weights
    # what the scheduler has sent there since the broadcast counts so often, below 0: once for every
    # scheduler
    sends: float
    weights: (
        FloatArray  # (FEATURES, CONTEXTS) of the products of a cell's and a decision's features
    )
    first: FloatArray  # (FEATURES + CONTEXTS, H) of a network whose score is added; H = 0: none
    first_bias: FloatArray  # (H,)
    second: FloatArray  # (H, H)
    second_bias: FloatArray  # (H,)
    last: FloatArray  # (H,)


class Cells(NamedTuple):
    """What S schedulers see of each other: their own cell now, the others at a broadcast.

    All broadcast together: at the first decision after `delay` seconds have passed since the last
    time, before it; with a delay of 0 before every decision.
    """

    delay: float  # seconds
    choice: Choice
    arrives: IntArray  # (J,) scheduler to whom a job comes first
    draws: FloatArray  # (2, J, S) uniform in (0, 1), of a job's first and second decision
    drawn: FloatArray  # (S,) those of the decision
    time: FloatArray  # (1,) seconds: of the last broadcast
    me: IntArray  # (1,) the scheduler who decides about a job
    now: FloatArray  # (S, SUMMARY_WIDTH)
    seen: FloatArray  # (S, SUMMARY_WIDTH) as of the last broadcast
    sent: FloatArray  # (S, S, SENT_WIDTH) by whom and to whom since, what stays included
    features: FloatArray  # (S, FEATURES) of every cell, for the job that is decided
    context: FloatArray  # (CONTEXTS,)
    score: FloatArray  # (S,)
    allowed: Flags  # (S,) 1: the cell could hold the job


@compiled_inner
def summarise(
    state: ClusterState,
    memory: Memory,
    of_node: IntArray,
    home: IntArray,
    besides: int,
    out: FloatArray,
) -> None:
    """Write the summaries (S, SUMMARY_WIDTH) of all cells now, a job that waits left out."""
    out[:] = 0.0
    job = state.clock[0].head
    while job != NONE:
        cell = home[job]
        if cell != NONE and job != besides:
            record = state.jobs[job]
            out[cell, WAITING] += 1.0
            out[cell, WAITING_GPUS] += record.gpus * (record.milli / WHOLE_GPU)
            out[cell, WAITING_WORK] += gpu_seconds(state, memory, job)
        job = state.jobs[job].after
    for place in range(state.clock[0].running):
        job = state.heap[place]
        record, cell = state.jobs[job], home[job]
        out[cell, RUNNING] += 1.0
        out[cell, RUNNING_WORK] += left(state, memory, job) * (
            record.gpus * (record.milli / WHOLE_GPU)
        )
    for node in range(len(state.nodes)):
        cell, free = of_node[node], float(state.nodes[node].free)
        out[cell, FREE] += free
        out[cell, LARGEST] = max(out[cell, LARGEST], free)


@compiled_inner
def look_around(
    state: ClusterState, memory: Memory, of_node: IntArray, home: IntArray, cells: Cells, job: int
) -> None:
    """Write who decides about `job` and the summaries now; broadcast them where it is time."""
    now = state.clock[0].now
    summarise(state, memory, of_node, home, job, cells.now)
    if now - cells.time[0] >= cells.delay:
        cells.time[0] = now
        cells.seen[:] = cells.now
        cells.sent[:] = 0.0
    again = home[job] != NONE
    cells.me[0] = home[job] if again else cells.arrives[job]
    cells.drawn[:] = cells.draws[int(again), job]


@compiled_inner
def describe(
    state: ClusterState,
    memory: Memory,
    gpus: IntArray,
    fastest: FloatArray,
    holds: Flags,
    cells: Cells,
    job: int,
) -> None:
    """Write what the deciding scheduler knows of every cell, and what its rule makes of it.

    Args:
        state: of the cluster.
        memory: of durations; its prior is the unit of time.
        gpus: (S,) of the cells.
        fastest: (S,) rate of the job alone on the fastest GPUs of each cell.
        holds: (S,) whether a cell could ever run the job.
        cells: features and context, or the scores of a rule without weights, are written.
        job: that is decided.
    """
    choice, schedulers, record, unit = cells.choice, len(gpus), state.jobs[job], memory.prior
    asked, work = record.gpus * (record.milli / WHOLE_GPU), gpu_seconds(state, memory, job)
    age, me = state.clock[0].now - cells.time[0], cells.me[0]
    best, mean, decided, loads = 0.0, 0.0, 0.0, 0.0
    for cell in range(schedulers):
        best, mean = max(best, fastest[cell]), mean + gpus[cell] / schedulers
        decided += cells.sent[me, cell, SENT]
    for cell in range(schedulers):
        mine = cell == me
        seen, sent = cells.now[cell] if mine else cells.seen[cell], cells.sent[me, cell]
        speed = fastest[cell] / best
        cells.allowed[cell] = holds[cell]
        if choice.rule == LEARNED:
            load = known_of(
                cells.features[cell],
                seen,
                sent,
                mine,
                schedulers,
                speed,
                float(gpus[cell]),
                asked,
                work,
                unit,
            )
            cells.features[cell, 1] = log(gpus[cell] / mean)
            cells.features[cell, 15] = 0.0 if mine else log1p(age / unit)
            loads += load / schedulers
        else:
            size = gpus[cell] * (speed if choice.speed else 1.0)
            counts = 0.0 if mine else choice.sends if choice.sends >= 0.0 else float(schedulers)
            cells.score[cell] = judged(choice.rule, seen, sent, counts, size)
    cells.context[0] = 1.0
    cells.context[1] = log1p(schedulers * decided) / 4.0
    cells.context[2] = loads
    cells.context[3] = log1p(work / unit) / 4.0
    if choice.rule == LEARNED:
        weigh(choice, cells)


@compiled_inner
def known_of(
    row: FloatArray,
    seen: FloatArray,
    sent: FloatArray,
    mine: bool,
    schedulers: int,
    speed: float,
    gpus: float,
    asked: float,
    work: float,
    unit: float,
) -> float:
    """Write the features of a cell, but for its size and the age of what is known; its load.

    A scheduler takes it that all others have sent as much to a cell as it has itself.
    """
    others = 0.0 if mine else float(schedulers)
    own, size, tenth = min(others, 1.0), gpus * speed, 0.1 * gpus * speed
    jobs, left_over = seen[WAITING] + seen[RUNNING], seen[WAITING_WORK] + seen[RUNNING_WORK]
    free = seen[FREE] - others * sent[SENT_GPUS]
    row[0] = mine
    row[2] = log(speed)
    row[3] = log1p(seen[WAITING] / tenth)
    row[4] = log1p((jobs + own * sent[SENT]) / tenth)
    row[5] = log1p((jobs + others * sent[SENT]) / tenth)
    row[6] = log1p((left_over + own * sent[SENT_WORK]) / size / unit)
    row[7] = log1p((left_over + others * sent[SENT_WORK]) / size / unit)
    row[8] = log1p(others * sent[SENT] / tenth)
    row[9] = log1p(seen[RUNNING_WORK] / size / unit)
    row[10] = seen[FREE] / gpus
    row[11] = seen[FREE] >= asked
    row[12] = free >= asked
    row[13] = seen[LARGEST] >= asked
    row[14] = max((free - seen[WAITING_GPUS]) / gpus, -3.0)
    row[16] = seen[WAITING] == 0.0
    row[17] = log1p(work / gpus / unit)
    return float(row[4])


@compiled_inner
def judged(rule: int, seen: FloatArray, sent: FloatArray, counts: float, size: float) -> float:
    """The score of a cell by a rule without weights."""
    if rule == BY_SIZE:
        return float(log(size))
    if rule == SHORTEST_QUEUE:
        return float(-(seen[WAITING] + seen[RUNNING] + counts * sent[SENT]) / size)
    return float(-(seen[WAITING_WORK] + seen[RUNNING_WORK] + counts * sent[SENT_WORK]) / size)


@compiled_inner
def weigh(choice: Choice, cells: Cells) -> None:
    """Write the scores of a rule with weights: linear, and two layers of tanh for every cell."""
    width = len(choice.last)
    common, hidden = choice.first_bias.copy(), np.empty(width)
    for c in range(CONTEXTS):
        common += cells.context[c] * choice.first[FEATURES + c]
    for cell in range(len(cells.score)):
        score = 0.0
        hidden[:] = common
        for f in range(FEATURES):
            value = cells.features[cell, f]
            hidden += value * choice.first[f]
            for c in range(CONTEXTS):
                score += value * choice.weights[f, c] * cells.context[c]
        hidden[:] = np.tanh(hidden)
        for h in range(width):
            total = choice.second_bias[h]
            for i in range(width):
                total += hidden[i] * choice.second[i, h]
            score += choice.last[h] * np.tanh(total)
        cells.score[cell] = score


@compiled_inner
def choose(cells: Cells) -> int:
    """A cell for the job that is decided, of those that could hold it: drawn, or the best of some.

    Rules with weights, and that by size, draw with probabilities in proportion to the exponential
    of the score (Gumbel's trick); the others take the best of the candidates, of equals at random.
    """
    choice, draws, schedulers = cells.choice, cells.drawn, len(cells.score)
    drawn = choice.rule in (LEARNED, BY_SIZE)
    chosen, most = NONE, 0.0
    for cell in range(schedulers):
        before = 0  # candidates with a larger draw
        for other in range(schedulers if choice.candidates < schedulers else 0):
            before += cells.allowed[other] and draws[other] > draws[cell]
        if not cells.allowed[cell] or before >= choice.candidates:
            continue
        score = cells.score[cell] - (log(-log(draws[cell])) if drawn else 0.0)
        if chosen == NONE or score > most or (score == most and draws[cell] > draws[chosen]):
            chosen, most = cell, score
    return chosen


@compiled_inner
def note(state: ClusterState, memory: Memory, cells: Cells, job: int, cell: int) -> None:
    """The scheduler who decides has sent `job` to a cell."""
    record, sent = state.jobs[job], cells.sent[cells.me[0], cell]
    sent[SENT] += 1.0
    sent[SENT_GPUS] += record.gpus * (record.milli / WHOLE_GPU)
    sent[SENT_WORK] += gpu_seconds(state, memory, job)
