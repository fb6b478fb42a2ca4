"""Texts that are given away name no folder of the machine on which they were made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from experiments.run.provenance import Provenance

ABSOLUTE = re.compile(r"(?<![\w.~:/-])/[^\s'\",;\[\]{}()]+")


def without_machine_paths(value: object) -> object:
    """A document in whose texts every absolute path has become its last name.

    What a path led to is told by the SHA-256 of the provenance.
    """
    if isinstance(value, str):
        return ABSOLUTE.sub(lambda found: Path(found.group()).name, value)
    if isinstance(value, Mapping):
        return {key: without_machine_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_machine_paths(item) for item in value]
    return value


def portable(provenance: Provenance) -> Provenance:
    """The same origin, whose command names no folder of this machine."""
    return replace(provenance, command=str(without_machine_paths(provenance.command)))
