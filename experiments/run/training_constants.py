"""A file of calibrated constants: what measured steps say of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from envs.files import read_json, write_atomically
from envs.forms import Form, read_form
from envs.hybrid.transformer_row import Constants
from experiments.run.artifacts import to_json
from experiments.run.provenance import Provenance

SCHEMA_VERSION = 1


class _Constants(Form):
    compute: PositiveFloat
    launch_s: NonNegativeFloat
    collective: PositiveFloat
    data: PositiveFloat
    pipeline: NonNegativeFloat
    framework_bytes: NonNegativeFloat


class _File(Form):
    kind: Literal["constants of training steps"]
    schema_version: Literal[1]
    units: dict[str, str]
    constants: _Constants
    intervals: dict[str, tuple[float, float]] | dict[str, list[float]]
    provenance: dict[str, Any]


def read_constants(path: str | None) -> Constants:
    """What `write_constants` wrote; None: what physics says.

    Raises:
        InputError: the file is no such.
    """
    if path is None:
        return Constants()
    found = read_form(_File, read_json(path), path)
    return Constants(**found.constants.model_dump())


def write_constants(
    path: Path,
    constants: Constants,
    intervals: Mapping[str, tuple[float, float]],
    provenance: Provenance,
) -> None:
    """The file of `calibration=`, whole or not at all."""
    document = {
        "kind": "constants of training steps",
        "schema_version": SCHEMA_VERSION,
        "units": {"launch_s": "seconds", "framework_bytes": "bytes"},
        "constants": asdict(constants),
        "intervals": {name: list(interval) for name, interval in intervals.items()},
        "provenance": provenance.document(),
    }
    write_atomically(path, to_json(document).encode())
