"""The fragmentation measure straight from its definition, one typical job at a time.

Weng et al., USENIX ATC 2023, section 3, in fractions of whole numbers. Kept as the reference for
`agents.cluster.rules.fragmentation`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple


class Job(NamedTuple):
    """What a typical job asks for; no types: any GPU."""

    cpu: int
    milli: int  # 0 for a job without GPU
    gpus: int
    types: tuple[str, ...] = ()


class Node(NamedTuple):
    """What a node has left."""

    cpu: int
    left: tuple[int, ...]  # thousandths of each GPU
    kind: str


def popularity(jobs: Sequence[Job], share: Fraction) -> dict[Job, Fraction]:
    """The most frequent jobs that make up `share` of all, and the part of each among them."""
    counts = Counter(jobs)
    ranked = sorted(counts, key=lambda job: (counts[job], job), reverse=True)
    kept: list[Job] = []
    while sum(counts[job] for job in kept) < share * len(jobs):
        kept.append(ranked[len(kept)])
    total = sum(counts[job] for job in kept)
    return {job: Fraction(counts[job], total) for job in kept}


def can_run(node: Node, job: Job) -> bool:
    """Enough cores, the right GPU type, and enough GPUs with enough left each; needs a GPU."""
    if job.gpus == 0 or job.cpu > node.cpu or (job.types and node.kind not in job.types):
        return False
    return len([left for left in node.left if left >= job.milli]) >= job.gpus


def fragments_for(node: Node, job: Job) -> int:
    """F_n(m): what `job` cannot use of what is left, in thousandths of a GPU."""
    if not can_run(node, job):
        return sum(node.left)
    return sum(left for left in node.left if left < job.milli)


def expected_fragments(node: Node, typical: Mapping[Job, Fraction]) -> Fraction:
    """F_n(M): the mean over the typical jobs."""
    return sum((p * fragments_for(node, job) for job, p in typical.items()), Fraction(0))
