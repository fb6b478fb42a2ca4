"""Folders that are written whole or not at all, and whose files are known by their hashes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file

from envs.errors import InputError, in_one_line
from envs.files import check_file, read_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from torch import Tensor, nn
    from torch.optim import Optimizer

_SPEC = "spec.json"  # of a folder that was exported
Weights = dict[str, NDArray[np.float32]]
Shapes = Mapping[str, tuple[int, ...]]
Settings = TypeVar("Settings", bound="DataclassInstance")


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a fresh folder to fill; it appears as `folder` when the block ends without an error.

    Everything reaches the disk before the rename. A folder already there is replaced.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield temporary
        for path in temporary.rglob("*"):
            if path.is_file():
                path.chmod(0o644)
                sync(path)
        sync(temporary)
        temporary.chmod(0o755)
        if folder.exists():
            old = temporary.with_name(temporary.name + ".old")
            folder.rename(old)
            temporary.rename(folder)
            shutil.rmtree(old)
        else:
            temporary.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file's (or folder's) contents to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_folder(folder: Path) -> None:
    """Refuse what is no folder, before a file in it is looked for.

    Raises:
        InputError: saying whether anything is there.
    """
    if not folder.is_dir():
        reason = "that is a file" if folder.exists() else "no such folder"
        raise InputError(f"is not a checkpoint folder: {reason}", file=folder)


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    check_file(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hashes_of(folder: Path) -> dict[str, str]:
    """File name -> hex digest of every file in `folder`."""
    return {path.name: sha256_of(path) for path in sorted(folder.iterdir()) if path.is_file()}


def write_spec(folder: Path, spec: Mapping[str, object]) -> None:
    """Write `spec` beside the files that lie in `folder`, with their hashes."""
    text = json.dumps({**spec, "sha256": hashes_of(folder)}, indent=2)
    (folder / _SPEC).write_text(f"{text}\n", encoding="utf-8")


def save_weights(module: nn.Module, path: Path, **more: Tensor) -> None:
    """Write the weights of a network by name, and `more` arrays."""
    from safetensors.torch import save_file

    weights = {name: value.contiguous() for name, value in module.state_dict().items()}
    save_file({**weights, **more}, path)


def optimizer_arrays(optimizer: Optimizer) -> dict[str, Tensor]:
    """What an optimizer keeps of its parameters, as arrays by number and name."""
    kept = optimizer.state_dict()["state"].items()
    return {f"{number}/{name}": x for number, own in kept for name, x in own.items()}


def load_optimizer(optimizer: Optimizer, arrays: Mapping[str, Tensor]) -> None:
    """Give an optimizer what `optimizer_arrays` took of it."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, x in arrays.items():
        number, _, key = name.partition("/")
        state.setdefault(int(number), {})[key] = x
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def check_hashes(folder: Path, hashes: Mapping[str, str]) -> None:
    """Raise where a file is missing or is not the one that was written.

    Raises:
        InputError: naming the file.
    """
    for name, expected in hashes.items():
        path = folder / name
        if Path(name).name != name or not os.path.isfile(path):  # however long its name
            raise InputError("the checkpoint lists this file, but it is missing", file=path)
        if sha256_of(path) != expected:
            raise InputError("the file was changed or damaged: its sha256 differs", file=path)


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises:
        InputError: the file is missing, unreadable or not a JSON object.
    """
    if not path.exists() and path.name == _SPEC:
        inside = sorted(str(one.parent) for one in path.parent.glob(f"*/{_SPEC}"))
        meant = f" (in {' and in '.join(inside)} there is one)" if inside else ""
        raise InputError(f"no checkpoint in {path.parent}: {_SPEC}: no such file{meant}")
    if not path.exists():
        raise InputError("no such file", file=path)
    data = read_json(path)
    if not isinstance(data, dict):
        raise InputError(f"holds a {type(data).__name__}, not an object", file=path)
    return data


def read_checked_spec(
    folder: Path, kind: str, version: int, listed: Collection[str]
) -> dict[str, Any]:
    """The spec of a folder, once the files that it must list are as it says.

    Raises:
        InputError: naming the file that is missing, damaged, or of another kind or version.
    """
    spec = read_kind(folder / _SPEC, kind, version)
    check_listed(folder / _SPEC, spec, listed)
    return spec


def read_kind(path: Path, kind: str, version: int) -> dict[str, Any]:
    """The JSON object in `path`, whose `kind` and `schema_version` are these.

    Raises:
        InputError: as `read_json_object`; one of them is another.
    """
    document = read_json_object(path)
    for key, expected in (("kind", kind), ("schema_version", version)):
        if document.get(key) != expected:
            raise InputError(f"is {document.get(key)!r}, not {expected!r}", file=path, field=key)
    return document


def read_settings(path: Path, kind: type[Settings], key: str = "config") -> Settings:
    """The settings in a spec, which has all of them, whatever the defaults are now.

    Raises:
        InputError: they are others, or out of range.
    """
    node = read_json_object(path).get(key)
    if not isinstance(node, dict) or set(node) != {one.name for one in fields(kind)}:
        raise InputError(f"is not that of a {kind.__name__}", file=path, field=key)
    try:
        return TypeAdapter(kind).validate_json(json.dumps(node), strict=True)
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join([key, *map(str, fault["loc"])])
        raise InputError(fault["msg"], file=path, field=field) from error


def read_weights(path: Path, shapes_of: Callable[[Weights], Shapes]) -> Weights:
    """The weights in a file by name; `shapes_of` says what shapes they must have.

    Raises:
        InputError: they are others, or the file is damaged.
    """
    try:
        found: Weights = load_file(path)
    except (TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(f"cannot be read ({in_one_line(error)})", file=path) from error
    shapes = shapes_of(found)
    for name in sorted({*shapes, *found}):
        shape = shapes.get(name)
        if name not in found or found[name].shape != shape or found[name].dtype != np.float32:
            raise InputError(f"does not fit: {name} is not of shape {shape}, float32", file=path)
    return found


def check_listed(path: Path, spec: Mapping[str, Any], listed: Collection[str]) -> None:
    """Hold the files that a spec must list against the hashes that it has of them.

    Raises:
        InputError: it lists others; as `check_hashes`.
    """
    hashes = spec.get("sha256")
    if not isinstance(hashes, dict) or set(hashes) != set(listed):
        raise InputError(f"must list {', '.join(listed)}", file=path, field="sha256")
    check_hashes(path.parent, hashes)


def shipped_names(shipped: Path, spec: str) -> tuple[str, ...]:
    """The folders in `shipped` that have a file `spec`."""
    return tuple(sorted(path.parent.name for path in shipped.glob(f"*/{spec}")))


def folder_of(checkpoint: str, shipped: Path, spec: str) -> Path:
    """The folder of a checkpoint: a path, or the name of one in `shipped` that has a file `spec`.

    A name without a separator that is no folder here is looked up among the shipped ones.

    Raises:
        InputError: it is neither.
    """
    folder = Path(checkpoint)
    if folder.is_dir() or len(folder.parts) != 1:
        return folder
    known = shipped_names(shipped, spec)
    if checkpoint not in known:
        reason = f"{checkpoint!r} is neither a folder nor shipped (shipped: {', '.join(known)})"
        raise InputError(reason, field="checkpoint")
    return shipped / checkpoint
