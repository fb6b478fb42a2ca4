"""Writing files: atomically, with their provenance."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml

from envs.errors import InputError
from envs.files import write_atomically
from experiments.config.composing import CONFIG_FILE
from experiments.run.one_run import RESULT_FILE
from experiments.run.provenance import Provenance, file_hash, stamp

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def claimed(folder: Path, config: object, text: str) -> Iterator[None]:
    """Make the folder of a run, or find that of the run to `resume`; no other run writes it now.

    A run that was killed and cannot be resumed is begun again where its config is `text`.

    Raises:
        InputError: it cannot be made, or another run or somebody's files lie in it; there is no run
            to resume.
    """
    resume = getattr(config, "resume", None)
    if resume is not None:
        if not (Path(resume) / CONFIG_FILE).is_file():
            raise InputError(f"is no run folder: it has no {CONFIG_FILE}", file=resume)
        if folder.resolve() != Path(resume).resolve():
            reason = f"resume={resume} goes on in its own folder, not in this one"
            raise InputError(f"config key 'hydra.run.dir': {reason}", file=folder)
    elif not (folder / CONFIG_FILE).exists():
        require_own_folder(folder)
    elif hasattr(config, "resume") or not _unfinished(folder, text):
        raise InputError("holds a run already", file=folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY)
    except OSError as error:
        fault = f"cannot be made a run folder ({error.strerror or error})"
        raise InputError(fault, file=folder) from error
    try:
        _lock(held, folder)
        yield
    finally:
        os.close(held)


def _lock(held: int, folder: Path) -> None:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError("another run writes it", file=folder) from error
    except OSError:
        pass  # a file system without locks


def _unfinished(folder: Path, text: str) -> bool:
    """Whether the run of a config has begun in a folder and not ended; the first line is aside."""
    try:
        begun = (folder / CONFIG_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    same = begun.partition("\n")[2] == text.partition("\n")[2]
    return same and not (folder / RESULT_FILE).exists()


def require_own_folder(folder: Path) -> None:
    """Refuse a folder in which somebody's files lie; hidden ones may, as of a file browser.

    Raises:
        InputError: naming one.
    """
    for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
        if not name.startswith("."):
            raise InputError(f"is no run's folder: it holds {name}", file=folder)


METRICS_FILE = "metrics.csv"  # of a training, in its run folder


def read_metrics(path: Path) -> list[dict[str, str]]:
    """The rows of that file, as they stand there."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def to_json(document: Mapping[str, object]) -> str:
    """Readable JSON; infinities become null, numpy scalars and arrays become numbers and lists."""
    return json.dumps(_plain(document), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write `document` as readable JSON."""
    write_atomically(path, to_json(document).encode())


def write_text(path: Path, text: str) -> None:
    """Write `text` in UTF-8."""
    write_atomically(path, text.encode())


def require_no_input(
    outputs: Iterable[Path], inputs: Iterable[str | Path | None], key: str
) -> None:
    """Refuse to write over what is read, by whatever name; `key` is that of the outputs.

    Raises:
        InputError: naming the file.
    """
    there = [Path(path) for path in inputs if path is not None and os.path.exists(path)]
    for path in outputs:
        if path.exists() and any(path.samefile(other) for other in there):
            raise InputError(f"config key '{key}': is a file that is read", file=path)


def to_yaml(document: object, provenance: Provenance) -> str:
    """YAML under a comment that holds the provenance."""
    header = json.dumps(stamp({}, provenance, kind="config"))
    return f"# {header}\n{yaml.dump(document, Dumper=_QuotingDumper, sort_keys=False)}"


def write_figure(path: Path, figure: Figure, provenance: Provenance) -> None:
    """Write a picture as PNG, its provenance in the file's text fields."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata=provenance.text())
    write_atomically(path, buffer.getvalue())


def write_sidecar(path: Path, provenance: Provenance, kind: str, **more: object) -> None:
    """Write `<path>.provenance.json` beside a file whose format has no room for provenance."""
    document = stamp({"file": path.name, "sha256": file_hash(path), **more}, provenance, kind=kind)
    write_json(path.with_name(f"{path.name}.provenance.json"), document)


class _QuotingDumper(yaml.SafeDumper):
    """Quotes every string that looks like a number: 6214e9 is one in YAML 1.2, but not in 1.1."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    try:
        float(text)
        style = "'"
    except ValueError:
        style = None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_QuotingDumper.add_representer(str, _quoted)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
