"""Placement policies that come with the package: a folder each, known by its name."""

from __future__ import annotations

from pathlib import Path

from models.artifacts import folder_of, shipped_names
from models.export.checkpoint import SPEC_FILE

SHIPPED = Path(__file__).resolve().parent


def shipped_placers() -> tuple[str, ...]:
    return shipped_names(SHIPPED, SPEC_FILE)


def placer_folder(checkpoint: str) -> Path:
    """The folder of a placement policy, see `models.artifacts.folder_of`."""
    return folder_of(checkpoint, SHIPPED, SPEC_FILE)
