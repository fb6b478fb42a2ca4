"""Labels of placement problems: what a searching planner makes of them in little time."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.placement.neighbourhood.levels import splits
from agents.solver import Budget
from agents.step.grouping import GroupedProblem, device_kinds
from agents.step.problems import Planner, StepPlanning
from envs.arrays import IntArray
from envs.errors import InputError
from envs.files import read_json, write_atomically
from envs.graphs.contraction import Fusion
from envs.step.order import Rule
from envs.step.price import Price, Pricer
from envs.step.problem import StepProblem
from envs.step.stored_problem import problem_arrays, restored_problem

FORMAT, SCHEMA_VERSION = "meshwright.labelled_problems", 1
DESCRIPTION = "dataset.json"


@dataclass(frozen=True, eq=False)
class LabelledProblem:
    """A fused problem, a teacher's placement of its groups and what others come to.

    Seconds are of plans that fit, in the best order of the problem's; inf: it does not fit.
    """

    number: int  # in its dataset
    problem: StepProblem  # of the pieces of groups
    device: IntArray  # (G,) the teacher's
    rule: Rule  # its best order
    seconds: float  # of it
    free_s: float  # of the teacher's own plan, in whatever order
    single_s: float  # of the best single device
    split_s: float  # of the best cheap split

    @property
    def fusion(self) -> Fusion:
        """The groups of `problem`."""
        return Fusion.of_fused(self.problem.graph)


@dataclass(frozen=True)
class Dataset(Sequence[LabelledProblem]):
    """The labelled problems of a folder; each is read when it is asked for."""

    folder: Path
    shard_size: int
    numbers: tuple[int, ...]  # of the problems that have a label

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        shard, place = divmod(self.numbers[index], self.shard_size)
        path = shard_path(self.folder, shard)
        arrays = _read(path, f"{place}/")
        rule, *seconds = arrays["label"].tolist()
        problem, device = restored_problem(arrays, path), arrays["device"].astype(np.int64)
        return LabelledProblem(self.numbers[index], problem, device, Rule(int(rule)), *seconds)


def read_dataset(folder: str | Path) -> Dataset:
    """The labelled problems that stand in a folder, in the order of their numbers.

    Raises:
        InputError: it is no such folder, or of another version.
    """
    path = Path(folder) / DESCRIPTION
    described = read_json(path)
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise InputError(f"is no dataset: 'format' is not {FORMAT!r}", file=path)
    if described.get("schema_version") != SCHEMA_VERSION:
        reason = f"is {described.get('schema_version')!r}, this release reads {SCHEMA_VERSION}"
        raise InputError(reason, file=path, field="schema_version")
    size = int(described["shard_size"])
    shards = {number: shard_path(path.parent, number) for number in range(described["shards"])}
    numbers = [
        size * shard + int(place)
        for shard, file in shards.items()
        if file.exists()
        for place in _read(file, "places")[""]
    ]
    return Dataset(path.parent, size, tuple(numbers))


def describe(folder: Path, shards: int, shard_size: int, provenance: Mapping[str, Any]) -> None:
    """Make a folder a dataset of so many shards, or go on with the one that is there.

    Raises:
        InputError: another dataset stands there.
    """
    document = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "shards": shards,
        "shard_size": shard_size,
        "provenance": dict(provenance),
    }
    path = folder / DESCRIPTION
    there = read_json(path) if path.exists() else document
    if not isinstance(there, dict) or {**there, "shards": 0} != {**document, "shards": 0}:
        raise InputError("another dataset stands there; name a new folder", file=folder)
    write_atomically(path, (json.dumps(document, indent=1) + "\n").encode())


def shard_path(folder: Path, number: int) -> Path:
    """The file of a shard."""
    return folder / f"shard{number:05d}.npz"


def write_shard(path: Path, found: Mapping[int, LabelledProblem]) -> None:
    """Write the problems of a shard, by their places in it; those without a label are left out."""
    arrays: dict[str, NDArray[np.generic]] = {"places": np.array(sorted(found), dtype=np.int64)}
    for place, item in found.items():
        seconds = [item.seconds, item.free_s, item.single_s, item.split_s]
        own = {"device": item.device.astype(np.int16), "label": np.array([item.rule, *seconds])}
        columns = {**problem_arrays(item.problem), **own}
        arrays |= {f"{place}/{name}": column for name, column in columns.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write_atomically(path, buffer.getvalue())


def _read(path: Path, prefix: str) -> dict[str, NDArray[Any]]:
    """The arrays of a shard whose names begin with `prefix`, by the rest of them."""
    try:
        archive = _archive(path, path.stat().st_mtime_ns)
        return {
            name.removeprefix(prefix): archive[name]
            for name in archive.files
            if name.startswith(prefix)
        }
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"is truncated or damaged ({error})", file=path) from error


@lru_cache(maxsize=8)
def _archive(path: Path, written_ns: int) -> Any:
    return np.load(path, allow_pickle=False)


_LOST = (
    1.005  # the price of a teacher's placement over that of its own order: search again above it
)
_AGAIN = 0.5  # of the budget, for placements alone, each in the best named order
_SAME = 1e-9  # relative difference, by rounding, of two equal times


def label(
    number: int, problem: StepProblem, teacher: Planner, budget_s: float
) -> LabelledProblem | None:
    """Fused `problem` with the best placement of its groups; None: none was found that fits.

    The best, in its best order, of the teacher's, of cheap splits and single devices. Where the
    teacher's plan owes its time to an order that no rule gives, it plans once more in named orders.
    """
    pricer, group = Pricer(problem), problem.graph.colocation
    first = np.unique(group, return_index=True)[1]  # (G,) a piece of every group

    def cheapest(devices: Iterable[IntArray]) -> tuple[float, IntArray | None]:
        found = [(_seconds(pricer.price(device[group])), device) for device in devices]
        return min(found, key=lambda pair: pair[0], default=(np.inf, None))

    single = cheapest(np.full(len(first), d) for d in range(problem.topology.num_devices))
    split = cheapest(d[first] for d in splits(GroupedProblem.of(problem, len(first))))
    taught, free_s = _placed(problem, teacher, budget_s)
    own = cheapest([] if taught is None else [taught[first]])
    best = min((single, split, own), key=lambda pair: pair[0])
    if best[0] > _LOST * free_s:
        named = replace(problem, orders=tuple(o for o in problem.orders if o != "free"))
        taught, _ = _placed(named, teacher, _AGAIN * budget_s)
        again = cheapest([] if taught is None else [taught[first]])
        best = again if again[0] < best[0] else best
    if best[1] is None or not np.isfinite(best[0]):
        return None
    chosen = aligned(problem, best[1], pricer)
    price = pricer.price(chosen[group])
    return LabelledProblem(
        number, problem, chosen, price.rule, price.seconds, free_s, single[0], split[0]
    )


def _seconds(price: Price) -> float:
    return price.seconds if price.excess <= 0.0 else np.inf


def _placed(
    problem: StepProblem, teacher: Planner, budget_s: float
) -> tuple[IntArray | None, float]:
    """The placement (N,) of the teacher's plan, if it has one, and the plan's seconds."""
    found = teacher.solve(StepPlanning(problem), Budget(budget_s))
    plan = found.solution
    return (None, np.inf) if plan is None else (plan.placement.device, found.value)


def aligned(problem: StepProblem, device: IntArray, pricer: Pricer) -> IntArray:
    """Placement (G,) of a fused problem, devices that are alike taken in the order of their use.

    Of devices of one server with equal times and memory, the one with the first group gets the
    lowest number, and so on; then likewise servers that are alike as a whole. Either is left as it
    was where it would make the step slower, as between islands of fast links.
    """
    server, devices = problem.topology.server, problem.topology.num_devices
    kind = device_kinds(problem)
    inside = [np.flatnonzero(server == one) for one in np.unique(server)]
    alone = [
        inside[at][kind[inside[at]] == k] for at in range(len(inside)) for k in np.unique(kind)
    ]
    best = pricer.price(device[problem.graph.colocation])
    for units in (
        [part[:, None] for part in alone],
        [np.stack(row) for row in _alike(inside, kind)],
    ):
        first = np.full(devices, len(device))
        np.minimum.at(first, device, np.arange(len(device)))
        number = np.arange(devices)
        for unit in units:  # rows of devices that stand for each other
            number[unit[np.argsort(first[unit].min(axis=1), kind="stable")]] = unit
        changed = number[device]
        price = pricer.price(changed[problem.graph.colocation])
        if price.excess <= best.excess and price.seconds <= best.seconds * (1.0 + _SAME):
            device, best = changed, price
    return device


def _alike(servers: list[IntArray], kind: IntArray) -> list[list[IntArray]]:
    """The servers (their devices) by the kinds of their devices."""
    found: dict[tuple[int, ...], list[IntArray]] = {}
    for devices in servers:
        found.setdefault(tuple(kind[devices].tolist()), []).append(devices)
    return list(found.values())
