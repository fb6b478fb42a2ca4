"""The published pipeline schedules: the list of every rank, by rules that know no times.

GPipe (Huang et al., NeurIPS 2019), 1F1B and interleaved 1F1B (Narayanan et al., SC 2021), looped
BFS (Lamy-Poirier, MLSys 2023), ZB-H1 and ZB-V (Qi et al., ICLR 2024 and NeurIPS 2024), DualPipeV
(DeepSeek-AI, 2025). The lists are those of `torch.distributed.pipelining` 2.13. And DAPPLE's early
backward (Fan et al., PPoPP 2021), whose policy A is 1F1B.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import product

from envs.errors import InputError
from envs.step.pipeline import Action, Orders, Work

FORWARD, INPUT, WEIGHT, BACKWARD = Work


def looped(ranks: int, chunks: int) -> tuple[int, ...]:
    """(S,) ranks: stage s on rank s mod `ranks`."""
    return tuple(range(ranks)) * chunks


def v_shaped(ranks: int) -> tuple[int, ...]:
    """(2 `ranks`,) ranks: down and up again, the first and the last stage on rank 0."""
    return (*range(ranks), *reversed(range(ranks)))


def gpipe(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """All forward passes, then all backward passes."""
    batches = range(micro_batches)
    return [
        [Action(work, rank, batch) for work, batch in product((FORWARD, BACKWARD), batches)]
        for rank in range(ranks)
    ]


def looped_bfs(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """All micro-batches through a rank's first stage, its second, ... and back in reverse."""
    orders = []
    for rank in range(ranks):
        forward = list(product(range(rank, ranks * chunks, ranks), range(micro_batches)))
        order = [Action(FORWARD, *task) for task in forward]
        orders.append(order + [Action(BACKWARD, *task) for task in reversed(forward)])
    return orders


def one_f_one_b(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """Rank r runs p-1-r forward passes, then forward and backward in turns."""
    return _in_turns(ranks, micro_batches, 1, micro_batches, 1)


def early_backward(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """DAPPLE's policy B: rank r runs 2 (p-1-r) forward passes first, to hide messages."""
    return _in_turns(ranks, micro_batches, 1, micro_batches, 2)


def interleaved(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """1F1B over several stages a rank; micro-batches pass all of them in rounds of about p."""
    return _in_turns(ranks, micro_batches, chunks, _in_round(ranks, micro_batches), 2)


def zb_h1(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """Interleaved with split backward passes; weights lag r input gradients behind on rank r."""
    in_round = _in_round(ranks, micro_batches)
    return _in_turns(ranks, micro_batches, chunks, in_round, 1, late_weights=True)


def zb_v(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """Two stages a rank in the shape of a V; weights are put off only while the pipeline empties.

    It is written for 2p-1 micro-batches or more; of fewer, the others are left out.
    """
    most = max(2 * ranks - 1, micro_batches)
    orders = []
    for rank in range(ranks):
        row = _Row(rank, 2 * ranks - 1 - rank)
        row.add("F0", 2 * (ranks - rank) - 1)
        row.add("F1 F0", rank)
        row.add("F1 I1 W1", ranks - rank)
        row.add("F0 I0 W0 F1 I1 W1", most - 2 * ranks + rank + 1)
        row.add("I0 W0 F1 I1 W1", ranks - rank - 1)
        row.add("I0 I1", rank)
        row.add("I0 W0", ranks - rank)
        row.add("W1", rank)
        row.add("W0", rank)
        orders.append([action for action in row.order if action.micro_batch < micro_batches])
    return orders


def dualpipe_v(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """ZB-V's placement, with forward passes overlapped with whole backward passes."""
    if micro_batches < 2 * ranks:
        raise InputError(
            f"config key 'micro_batches': dualpipe_v needs as many as stages, {2 * ranks}, "
            f"not {micro_batches}"
        )
    orders = []
    for rank in range(ranks):
        row, rest = _Row(rank, 2 * ranks - 1 - rank), ranks - 1 - rank
        row.add("F0", 2 * rest)
        row.add("F0 F1", rank + 1)
        row.add("I1 W1 F1", rest)
        turns = micro_batches - 2 * ranks + rank + 1
        if rest == 0:
            row.add("F0 B1 F1&B0", 1)
            turns -= 1
        row.add("F0&B1 F1&B0", turns)
        row.add("B1 F1&B0", rest)
        last = ["B1", "B0"] * (rank + 1)
        row.add(" ".join(last[: rank + 1]), 1)
        row.add(" ".join(last[rank + 1 :]).replace("B", "I"), 1)
        row.add("W I0", rest)
        row.add("W", rank + 1)
        orders.append(row.order)
    return orders


PUBLISHED: dict[str, Callable[[int, int, int], Orders]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "early_backward": early_backward,
    "looped_bfs": looped_bfs,
    "interleaved": interleaved,
    "zb_h1": zb_h1,
    "zb_v": zb_v,
    "dualpipe_v": dualpipe_v,
}


def _in_round(ranks: int, micro_batches: int) -> int:
    rounds = max(1, micro_batches // ranks)
    if micro_batches % rounds:
        raise InputError(
            f"config key 'micro_batches': {micro_batches} on {ranks} ranks do not divide into "
            f"{rounds} rounds"
        )
    return micro_batches // rounds


def _in_turns(
    ranks: int,
    micro_batches: int,
    chunks: int,
    in_round: int,
    slope: int,
    *,
    late_weights: bool = False,
) -> Orders:
    """Some forward passes, then forward and backward in turns, then what is left.

    The first are `slope` more for every rank behind, and those of all chunks but the last. Forward
    passes take the rank's stages in rounds of `in_round` micro-batches, backward passes in the
    reverse order of stages. With `late_weights`, backward passes are split, and each gradient of
    weights comes r input gradients late on rank r.
    """
    orders = []
    total = chunks * micro_batches
    chunk = [k // in_round % chunks for k in range(total)]
    for rank in range(ranks):
        warm_up = min((chunks - 1) * in_round + slope * (ranks - 1 - rank), total)
        forward = numbered(rank + c * ranks for c in chunk)
        backward = numbered(rank + (chunks - 1 - c) * ranks for c in chunk)
        order = [Action(FORWARD, *task) for task in forward[:warm_up]]
        for k, task in enumerate(backward):
            order += [Action(FORWARD, *t) for t in forward[warm_up + k : warm_up + k + 1]]
            order.append(Action(INPUT if late_weights else BACKWARD, *task))
            if late_weights and k >= rank:
                order.append(Action(WEIGHT, *backward[k - rank]))
        left = backward[max(0, total - rank) :] if late_weights else []
        orders.append(order + [Action(WEIGHT, *task) for task in left])
    return orders


def numbered(items: Iterable[int]) -> list[tuple[int, int]]:
    """Each item, as a stage, with how many like it came before: its micro-batch."""
    seen: Counter[int] = Counter()
    tasks = []
    for item in items:
        tasks.append((item, seen[item]))
        seen[item] += 1
    return tasks


class _Row:
    """A rank's list, in blocks of words: "F0" is the next forward pass of its first stage.

    "W" is the oldest gradient of weights that is left, "F0&B1" two passes beside each other.
    """

    def __init__(self, *stages: int) -> None:
        self.order: list[Action] = []
        self._stages = stages
        self._done: Counter[str] = Counter()
        self._owed: list[tuple[int, int]] = []

    def add(self, block: str, times: int) -> None:
        for word in block.split() * times:
            if word == "W":
                self.order.append(Action(WEIGHT, *self._owed.pop(0)))
                continue
            first, _, second = word.partition("&")
            beside = self._next(second) if second else None
            work = {"F": FORWARD, "I": INPUT, "W": WEIGHT, "B": BACKWARD}[first[0]]
            task = self._next(first)
            self.order.append(Action(work, *task, beside))
            if work is INPUT:
                self._owed.append(task)
            elif work is WEIGHT:
                self._owed.remove(task)

    def _next(self, word: str) -> tuple[int, int]:
        """The stage of a word, and which of its micro-batches is next."""
        stage = self._stages[int(word[1])]
        batch = self._done[word]
        for kind in {"B": "IWB", "I": "IB"}.get(word[0], word[0]):
            self._done[kind + word[1]] = batch + 1
        return stage, batch
