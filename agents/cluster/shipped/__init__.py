"""Schedulers that come with the package: a checkpoint folder each, known by its name."""

from __future__ import annotations

from pathlib import Path

from envs.errors import InputError
from models.export.checkpoint import SPEC_FILE

SHIPPED = Path(__file__).resolve().parent


def shipped_schedulers() -> tuple[str, ...]:
    return tuple(sorted(spec.parent.name for spec in SHIPPED.glob(f"*/{SPEC_FILE}")))


def scheduler_folder(checkpoint: str) -> Path:
    """The folder of a scheduler: a path, or the name of one that is shipped.

    A name without a separator that is no folder here is looked up among the shipped ones.

    Raises:
        InputError: it is neither.
    """
    folder = Path(checkpoint)
    if folder.is_dir() or len(folder.parts) != 1:
        return folder
    known = shipped_schedulers()
    if checkpoint not in known:
        told = f"{checkpoint!r} is neither a folder nor shipped (shipped: {', '.join(known)})"
        raise InputError(told, field="checkpoint")
    return SHIPPED / checkpoint
