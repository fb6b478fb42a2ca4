"""Labelled placement problems on disk: fused problems, and what a teacher made of each.

A dataset is a folder of shards, files of the same number of problems each, and a description of
what it was made from (`dataset.json`). Problems are numbered from 0 through all shards; shards that
are yet to be made are left out.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.arrays import IntArray
from envs.errors import InputError
from envs.files import read_json, write_atomically
from envs.graphs.contraction import Fusion
from envs.step.order import Rule
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
        told = f"is {described.get('schema_version')!r}, this release reads {SCHEMA_VERSION}"
        raise InputError(told, file=path, field="schema_version")
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
