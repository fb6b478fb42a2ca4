"""Every policy of an information class, with every placement rule, on a window; kept by a hash."""

from __future__ import annotations

import hashlib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from hydra.utils import get_object

from agents.cluster.lower_bound import completion_bound
from envs.cluster.simulation.cluster_metrics import measure
from envs.errors import InputError, require_one_of
from experiments.cluster.problem import ClusterProblem, Scheduler, built_policy
from experiments.config.signatures import OURS, PREFIX
from experiments.run.one_run import Run
from experiments.run.provenance import file_hash
from experiments.study.display import ProgressDisplay
from experiments.study.grid import Cell, Document, FunctionCell, Grid
from experiments.study.processes import LocalProcesses

UNKNOWN, KNOWN = "unknown", "known"
CLASSES = {
    UNKNOWN: frozenset({"nothing", "predictions"}),
    KNOWN: frozenset({"nothing", "predictions", "durations"}),
}
VERSION = 1  # of policies and simulator: raise it where a replay comes to something else
FOLDERS = ("path", "checkpoint", "weights")  # arguments of policies that name what they read

Node = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a policy made of a window; times in seconds."""

    jobs: int
    mean_jct_s: float
    p50_jct_s: float
    p99_jct_s: float
    preemptions: int
    seconds: float  # wall time of the replay


@dataclass(frozen=True, eq=False)
class Contender:
    """A policy with a placement rule, or one that places jobs itself."""

    policy: str  # name of the agent
    placement: str | None
    node: Node
    build: Callable[[], Scheduler]  # the policy that the node describes

    @property
    def name(self) -> str:
        """`policy/placement`."""
        return self.policy if self.placement is None else f"{self.policy}/{self.placement}"


def check_class(information: str, key: str) -> None:
    """What a config key names is a class of information.

    Raises:
        InputError: it is none.
    """
    require_one_of(information, [*CLASSES], file=f"config key '{key}'")


def baselines_of(
    information: str,
    agents: Mapping[str, Any],
    placements: Mapping[str, Any],
    rules: Mapping[str, Sequence[str]],
) -> list[Contender]:
    """`of_class`, at least one.

    Raises:
        InputError: also where no policy is of the class.
    """
    found = of_class(information, "agents", agents, placements, rules)
    if not found:
        raise InputError(f"config key 'agents': no policy of the class {information!r}")
    return found


def of_class(
    information: str,
    key: str,
    agents: Mapping[str, Any],
    placements: Mapping[str, Any],
    rules: Mapping[str, Sequence[str]],
) -> list[Contender]:
    """Those policies that may look at no more than a class of information allows.

    Args:
        information: the class, "unknown" or "known" durations.
        key: where the policies stand in the config.
        agents: nodes of policies by name.
        placements: nodes of placement rules by name.
        rules: the names of the rules for some policies; the others meet all.

    Raises:
        InputError: there is no such policy or rule, or a node describes no policy.
    """
    for policy, names in rules.items():
        for name in (policy, *names):
            if name not in (agents if name == policy else placements):
                raise InputError(f"config key 'rules.{policy}': '{name}' is not among those given")
    found = []
    for policy, node in agents.items():
        where = f"{key}.{policy}"
        if built_policy(node, where).knows not in CLASSES[information]:
            continue
        placed: dict[str | None, Node] = {None: node}
        if "placement" in node:
            names = rules.get(policy, [*placements])
            placed = {name: {**node, "placement": placements[name]} for name in names}
        for placement, one in placed.items():
            found.append(Contender(policy, placement, one, partial(built_policy, one, where)))
    return found


def replayed_on(
    asked: Sequence[tuple[Contender, Sequence[ClusterProblem]]], folder: Path, run: Run
) -> list[list[Outcome]]:
    """What each contender makes of its problems; what was replayed before is read in `folder`.

    Raises:
        InputError: a policy could not schedule its problem, or what was kept is damaged.
    """
    problems = dict.fromkeys(chain.from_iterable(some for _, some in asked))
    digests = {problem: problem_hash(problem) for problem in problems}
    rows = [
        [replay_cell(problem, digests[problem], contender, folder) for problem in some]
        for contender, some in asked
    ]
    found = called([cell for row in rows for cell in row], run)
    return [[outcome_of(cell, found[cell]) for cell in row] for row in rows]


def called(cells: Sequence[FunctionCell], run: Run) -> Mapping[Cell, Document]:
    """What the functions of some cells come to, one after the other.

    Raises:
        InputError: one of them does.
    """
    with ProgressDisplay(run.console) as display:
        found = Grid(LocalProcesses(1), run.provenance).run(cells, display)
    for fault in found.faults.values():
        raise InputError(fault.reason)
    return found.documents


def replay_cell(
    problem: ClusterProblem, digest: str, contender: Contender, folder: Path
) -> FunctionCell:
    """The replay of a problem under a contender, kept in `folder`.

    It is kept by the hash of the problem (`digest`), the policy's arguments, the files that these
    name, the source of classes that are not of this project, and `VERSION`.
    """
    node, name = contender.node, contender.name
    inputs: dict[str, object] = {"version": VERSION, "problem": digest, "agent": node}
    if files := files_of(node):
        inputs["files"] = files
    if sources := sources_of(node):
        inputs["sources"] = sources

    def outcome() -> dict[str, object]:
        return {"baseline": name, **asdict(replayed(problem, contender.build()))}

    return FunctionCell(f"{problem.trace.name}: {name}", outcome, folder, inputs)


def outcome_of(cell: FunctionCell, document: Document) -> Outcome:
    """What a replay came to.

    Raises:
        InputError: what was kept is damaged.
    """
    try:
        return Outcome(**{key: document[key] for key in document if key != "baseline"})
    except TypeError as error:
        message = f"is no outcome of a baseline ({error}): delete it"
        raise InputError(message, file=cell.record) from error


def replayed(problem: ClusterProblem, policy: Scheduler) -> Outcome:
    """The outcome of replaying a problem under a policy."""
    start = time.perf_counter()
    schedule = problem.replay(policy)
    seconds = time.perf_counter() - start
    found = measure(schedule, problem.cluster.num_gpus)
    if found.finished < found.jobs:
        left = found.jobs - found.finished
        raise InputError(f"{policy.name} leaves {left} jobs unfinished", file=problem.trace.name)
    jct = found.jct
    return Outcome(found.jobs, jct.mean, jct.p50, jct.p99, found.preemptions, seconds)


def bound_s(problem: ClusterProblem) -> float:
    """The proved lower bound on the mean JCT, seconds."""
    return completion_bound(problem.trace, problem.cluster, problem.rates).mean_jct_s


def problem_hash(problem: ClusterProblem) -> str:
    """SHA-256 of the jobs, the nodes, the rate tables and the overheads."""
    digest = hashlib.sha256()
    trace, cluster = problem.trace, problem.cluster
    tables = problem.rates.tables(trace, cluster)
    labels = (trace.user, trace.queue, trace.gpu_type, trace.model)
    columns: list[Any] = [
        trace.submit_s, trace.duration_s, trace.num_gpus, trace.gpu_milli, trace.cpu_milli,
        trace.memory_mib, *(label.codes for label in labels), cluster.gpus, cluster.rack,
        cluster.gpu_type, cluster.cpu_milli, cluster.memory_mib, *tables,
    ]  # fmt: skip
    for column in columns:
        array = np.ascontiguousarray(column)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    names = [label.names for label in labels]
    incidents = None if problem.incidents is None else problem.incidents.tolist()
    digest.update(repr((names, cluster.gpu_types, tuple(problem.overheads), incidents)).encode())
    return digest.hexdigest()


def files_of(node: Node) -> dict[str, str]:
    """SHA-256 of the files that a policy's arguments name, by their path."""
    found: dict[str, str] = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            found |= files_of(value)
        elif key in FOLDERS and isinstance(value, str) and Path(value).exists():
            path = Path(value)
            files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
            found |= {str(file): file_hash(file) for file in files}
    return found


def sources_of(node: Node) -> dict[str, str]:
    """SHA-256 of the files that define what `_target_`s outside this project name."""
    inner = [value for value in node.values() if isinstance(value, Mapping)]
    found = {name: digest for value in inner for name, digest in sources_of(value).items()}
    target = str(node.get("_target_", ""))
    if (
        target and target.removeprefix(PREFIX).partition(".")[0] not in OURS
    ):  # which `VERSION` tells
        module = inspect.getmodule(get_object(target))
        if path := getattr(module, "__file__", None):
            found[target] = file_hash(path)
    return found
