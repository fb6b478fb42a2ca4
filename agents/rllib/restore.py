"""Training checkpoints: everything a run needs to go on, in files that are never unpickled.

<run folder>/checkpoints/iteration_000020/
    weights.safetensors      every policy, as <module>/<parameter>
    optimizer.safetensors    Adam's step, exp_avg, exp_avg_sq of every parameter
    reference.safetensors    the policies that PPO began with, where it stays near them
    episodes.safetensors     the episodes that are running, where they go on
    state.json               progress, counters and the hash of each file
<run folder>/best/           weights.safetensors of the best evaluation, and its score.json
<run folder>/untrained/      the same of the first evaluation, before training

Randomness needs no file: every draw is seeded by the run's seed and a counter.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from agents.rllib.ppo import under
from envs.errors import InputError, in_one_line
from models.architecture import Policy
from models.artifacts import atomic_folder, check_hashes, hashes_of, read_json_object

SCHEMA_VERSION = 3
KEPT = 2  # checkpoints that stay
BEST, UNTRAINED, WEIGHTS, SCORE_FILE = "best", "untrained", "weights", "score.json"
_NAME = re.compile(r"iteration_(\d{6,})")

Files = Mapping[str, Mapping[str, Tensor]]  # arrays by name of the file and their own


def save(
    run_folder: Path, iteration: int, state: Mapping[str, Any], files: Files, identity: object
) -> Path:
    """Write a checkpoint whole or not at all, and drop all but the last `KEPT`.

    Args:
        run_folder: the run's folder.
        iteration: after which it is taken.
        state: plain numbers, mappings and lists.
        files: arrays.
        identity: what a resumed run must have in common with this one.
    """
    folder = run_folder / "checkpoints" / f"iteration_{iteration:06d}"
    document = {"units": {"seconds": "s"}, "identity": identity, "state": state}
    _write(folder, "state.json", document, files)
    for old in list(_folders(run_folder))[:-KEPT]:
        shutil.rmtree(old)
    return folder


def has_checkpoint(run_folder: Path) -> bool:
    """Whether the run in `run_folder` has written a checkpoint."""
    return any(_folders(run_folder))


def restore(run_folder: Path, identity: Mapping[str, Any]) -> tuple[dict[str, Any], Files]:
    """State and arrays of the last checkpoint.

    Raises:
        InputError: there is none, a file is damaged, or it belongs to another run.
    """
    folders = list(_folders(run_folder))
    if not folders:
        raise InputError("holds no checkpoint to resume from", file=run_folder / "checkpoints")
    document = _read(folders[-1], "state.json", ("identity", "state"))
    for name, value in json.loads(json.dumps(identity)).items():  # as it was stored
        if document["identity"].get(name) != value:
            raise InputError(
                f"the checkpoint was written with {document['identity'].get(name)!r}, "
                f"this run has {value!r}",
                file=folders[-1] / "state.json",
                field=name,
            )
    files = {path.stem: _tensors(path) for path in folders[-1].glob("*.safetensors")}
    return document["state"], files


def save_best(
    run_folder: Path, weights: Mapping[str, Tensor], score: Mapping[str, Any], which: str = BEST
) -> None:
    """Write weights and score of the best evaluation, or of another, whole or not at all."""
    _write(run_folder / which, SCORE_FILE, score, {WEIGHTS: weights})


def load_best(run_folder: Path, policies: Mapping[str, Policy], which: str = BEST) -> None:
    """Give policies, by module, the weights of the run's best evaluation, or of another.

    Raises:
        InputError: there are none, they were damaged, or are another policy's.
    """
    tensors = best_weights(run_folder, which)
    try:
        for module, policy in policies.items():
            policy.load_state_dict(under(tensors, f"{module}/"))
    except RuntimeError as error:
        raise InputError(in_one_line(error), file=_weights_file(run_folder, which)) from error


def best_weights(run_folder: Path, which: str = BEST) -> dict[str, Tensor]:
    """The weights of the run's best evaluation, or of another, by name.

    Raises:
        InputError: there are none, or they were damaged.
    """
    _read(run_folder / which, SCORE_FILE, ())
    return _tensors(_weights_file(run_folder, which))


def _weights_file(run_folder: Path, which: str) -> Path:
    return run_folder / which / f"{WEIGHTS}.safetensors"


def _write(folder: Path, name: str, document: Mapping[str, Any], files: Files) -> None:
    with atomic_folder(folder) as temporary:
        for stem, tensors in files.items():
            contiguous = {key: x.contiguous() for key, x in tensors.items()}
            save_file(contiguous, temporary / f"{stem}.safetensors")
        stamped = {
            "schema_version": SCHEMA_VERSION,
            **document,
            "sha256": hashes_of(temporary),
        }
        (temporary / name).write_text(json.dumps(stamped), encoding="utf-8")


def _read(folder: Path, name: str, expected: tuple[str, ...]) -> dict[str, Any]:
    """The document of a folder whose files are those that were written with it."""
    document: dict[str, Any] = read_json_object(folder / name)
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        message = f"is {version}, this version reads {SCHEMA_VERSION}"
        raise InputError(message, file=folder / name, field="schema_version")
    for key in (*expected, "sha256"):
        if not isinstance(document.get(key), dict):
            raise InputError("is missing", file=folder / name, field=key)
    check_hashes(folder, document["sha256"])
    return document


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"not a readable safetensors file ({error})", file=path) from error
    return tensors


def _folders(run_folder: Path) -> Iterator[Path]:
    """Complete checkpoints, oldest first."""
    root = run_folder / "checkpoints"
    found = [path for path in root.iterdir() if _NAME.fullmatch(path.name)] if root.is_dir() else []
    yield from sorted(found, key=lambda path: int(path.name.partition("_")[2]))
