"""Configs composed as the apps compose them, so that every default stands in `conf` alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton

from envs.errors import InputError
from experiments.config.composing import check_command_line
from experiments.run.artifacts import write_figure
from experiments.run.provenance import Provenance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Schema = TypeVar("Schema")


def composed(config_name: str, schema: type[Schema], words: Sequence[str]) -> Schema:
    """The config of an app, as its command line with these words composes it.

    Raises:
        InputError: as on the command line.
    """
    with _hydra_set_aside():
        return check_command_line(words, config_name, schema).config


def word(key: str, value: object) -> str:
    """`key=value` as on a command line.

    Raises:
        InputError: the value is no bool, number, text or None, nor a list or mapping of these.
    """
    return f"{key}={_written(value, key)}"


def provenance(function: str, seed: int) -> Provenance:
    """Of a file that is written by a function of this face."""
    return Provenance(seed=seed, command=f"meshwright.{function}")


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """What cannot be written is an `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror or error})", file=path) from error


def drawn(path: str | Path, figure: Figure, stamped: Provenance) -> Path:
    """Write a picture as PNG; the suffix may be left out.

    Raises:
        InputError: it is to have another format, or cannot be written.
    """
    path = Path(path if Path(path).suffix else f"{path}.png")
    if path.suffix != ".png":
        raise InputError("pictures are written as .png alone", file=path)
    with writing(path):
        write_figure(path, figure, stamped)
    return path


def _written(value: object, key: str) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{quoted}'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_written(v, key)}" for name, v in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(_written(item, key) for item in value) + "]"
    reason = f"{type(value).__name__} cannot stand in a config; give the whole object instead"
    raise InputError(reason, field=key)


@contextmanager
def _hydra_set_aside() -> Iterator[None]:
    """A user's own Hydra app goes on as it was."""
    kept = Singleton.get_state()
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        Singleton.set_state(kept)
