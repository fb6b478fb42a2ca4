"""Training checkpoints: everything a run needs to go on, in files that are never unpickled.

<run folder>/checkpoints/iteration_000020/
    weights.safetensors      the policy; of a team every policy, under the name of its module
    optimizer.safetensors    Adam's step, exp_avg, exp_avg_sq of every parameter
    random.safetensors       torch's generator
    state.json               progress, the other generators, the hash of each file
    *.safetensors            what else a kind of training keeps
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from numpy.random import PCG64, mtrand
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from envs.errors import InputError
from models.artifacts import atomic_folder, check_hashes, hashes_of, read_json_object

SCHEMA_VERSION = 2
KEPT = 2  # checkpoints that stay
_ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")
_NAME = re.compile(r"iteration_(\d{6,})")


class Counted(Protocol):
    """How far a run is: a dataclass of plain numbers, mappings and lists."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    iteration: int


P = TypeVar("P", bound=Counted)


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seed every global generator RLlib draws from.

    Inside, numpy's is a PCG64, whose state is plain numbers and goes into a JSON file; afterwards
    numpy has its own again.
    """
    before = mtrand.get_bit_generator()
    torch.manual_seed(seed)
    random.seed(seed)
    mtrand.set_bit_generator(PCG64(seed))
    try:
        yield
    finally:
        mtrand.set_bit_generator(before)


def save(
    run_folder: Path,
    progress: Counted,
    policy: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    identity: dict[str, Any],
    arrays: Mapping[str, Mapping[str, Tensor]] = MappingProxyType({}),
) -> Path:
    """Write a checkpoint whole or not at all, and drop all but the last `KEPT`.

    Call it inside `seeded_generators`.

    Args:
        run_folder: the run's folder.
        progress: counters and the best plan so far.
        policy: its weights are stored by name; the policies of a team are one module.
        optimizers: every Adam over the policy's parameters.
        identity: what a resumed run must have in common with this one.
        arrays: further files, by name without suffix, each of arrays by name.
    """
    folder = run_folder / "checkpoints" / f"iteration_{progress.iteration:06d}"
    with atomic_folder(folder) as temporary:
        save_file(dict(policy.state_dict()), temporary / "weights.safetensors")
        moments = {
            f"{key}.{name}": optimizer.state[parameter][key]
            for name, parameter in policy.named_parameters()
            for optimizer in optimizers
            for key in _ADAM_STATE
            if parameter in optimizer.state
        }
        save_file(moments, temporary / "optimizer.safetensors")
        save_file({"torch": torch.get_rng_state()}, temporary / "random.safetensors")
        for stem, tensors in arrays.items():
            save_file(dict(tensors), temporary / f"{stem}.safetensors")
        state = {
            "schema_version": SCHEMA_VERSION,
            "units": {"step_time": "s", "seconds": "s"},
            "identity": identity,
            "progress": asdict(progress),
            "random": {
                "numpy": mtrand.get_bit_generator().state,
                "python": random.getstate(),
            },
            "sha256": hashes_of(temporary),
        }
        (temporary / "state.json").write_text(json.dumps(state), encoding="utf-8")
    for old in list(_folders(run_folder))[:-KEPT]:
        shutil.rmtree(old)
    return folder


def has_checkpoint(run_folder: Path) -> bool:
    """Whether the run in `run_folder` has written a checkpoint."""
    return any(_folders(run_folder))


def restore(
    run_folder: Path,
    policy: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    identity: dict[str, Any],
    progress_type: type[P],
) -> P:
    """Bring policy, optimizer and all random generators to the last checkpoint's state.

    Returns:
        The progress, of the type that was saved.

    Raises:
        InputError: there is no checkpoint, a file is damaged, or it belongs to another run.
    """
    folder = last_checkpoint(run_folder)
    state_file = folder / "state.json"
    state = read_json_object(state_file)
    if state.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"is {state.get('schema_version')}, this version reads {SCHEMA_VERSION}",
            file=state_file,
            field="schema_version",
        )
    for name in ("identity", "progress", "random", "sha256"):
        if not isinstance(state.get(name), dict):
            raise InputError("is missing", file=state_file, field=name)
    for name, value in json.loads(json.dumps(identity)).items():  # as it was stored
        if state["identity"].get(name) != value:
            raise InputError(
                f"the checkpoint was written with {state['identity'].get(name)!r}, "
                f"this run has {value!r}",
                file=state_file,
                field=name,
            )
    check_hashes(folder, state["sha256"])
    weights = _tensors(folder / "weights.safetensors")
    try:
        policy.load_state_dict(weights)
    except RuntimeError as error:
        message = " ".join(str(error).split())
        raise InputError(message, file=folder / "weights.safetensors") from error
    _restore_moments(policy, optimizers, _tensors(folder / "optimizer.safetensors"))
    try:
        progress = progress_type(**state["progress"])
        mtrand.get_bit_generator().state = state["random"]["numpy"]
        version, numbers, gauss = state["random"]["python"]
        random.setstate((version, tuple(numbers), gauss))
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"is not what a run writes ({error})", file=state_file) from error
    torch.set_rng_state(_tensors(folder / "random.safetensors")["torch"])
    return progress


def last_checkpoint(run_folder: Path) -> Path:
    """The folder of the newest checkpoint.

    Raises:
        InputError: there is none.
    """
    folders = list(_folders(run_folder))
    if not folders:
        raise InputError("holds no checkpoint to resume from", file=run_folder / "checkpoints")
    return folders[-1]


def arrays_of(folder: Path, stem: str) -> dict[str, Tensor]:
    """The arrays that were saved under `stem` in a checkpoint.

    Raises:
        InputError: the file is missing or damaged.
    """
    return _tensors(folder / f"{stem}.safetensors")


def _restore_moments(
    policy: nn.Module, optimizers: Sequence[torch.optim.Optimizer], moments: dict[str, Tensor]
) -> None:
    owner = {
        parameter: optimizer
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for name, parameter in policy.named_parameters():
        if f"step.{name}" in moments:
            owner[parameter].state[parameter] = {
                key: moments[f"{key}.{name}"] for key in _ADAM_STATE
            }


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
