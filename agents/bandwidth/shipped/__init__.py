"""Allocation policies that come with the package: a folder each, known by its name."""

from __future__ import annotations

from pathlib import Path

from models.artifacts import folder_of
from models.export.checkpoint import SPEC_FILE

SHIPPED = Path(__file__).resolve().parent


def allocator_folder(checkpoint: str) -> Path:
    """The folder of allocators, see `models.artifacts.folder_of`."""
    return folder_of(checkpoint, SHIPPED, SPEC_FILE)
