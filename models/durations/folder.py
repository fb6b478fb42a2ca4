"""A fitted posterior over the work that jobs still need, in a folder.

durations.safetensors   the weights
spec.json               the columns of its input, the bins, the settings, origin, sha256
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from envs.cluster.environment.duration_features import columns
from envs.errors import InputError
from models.artifacts import atomic_folder, hashes_of, read_checked_spec
from models.durations.network import DurationConfig, DurationPosterior
from models.durations.posterior import edges_s

KIND, SCHEMA_VERSION = "meshwright.durations", 1
WEIGHTS_FILE, SPEC_FILE = "durations.safetensors", "spec.json"


def save_durations(
    posterior: DurationPosterior, folder: Path, provenance: Mapping[str, object]
) -> None:
    """Write the folder whole or not at all."""
    with atomic_folder(folder) as temporary:
        weights = {name: value.contiguous() for name, value in posterior.state_dict().items()}
        save_file(weights, temporary / WEIGHTS_FILE)
        spec = {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "units": {"work": "seconds on the GPU type of the trace"},
            "history": posterior.config.history,
            "columns": columns(posterior.config.history),
            "bins": edges_s().tolist(),
            "config": asdict(posterior.config),
            "provenance": dict(provenance),
            "sha256": hashes_of(temporary),
        }
        text = json.dumps(spec, indent=2) + "\n"
        (temporary / SPEC_FILE).write_text(text, encoding="utf-8")


def load_durations(folder: Path) -> DurationPosterior:
    """Read a folder that `save_durations` wrote; the posterior is ready to predict.

    Raises:
        InputError: naming the file that is missing, damaged, of another kind or version, or about
            other columns or bins than those of today.
    """
    path = folder / SPEC_FILE
    spec = read_checked_spec(folder, SPEC_FILE, KIND, SCHEMA_VERSION, [WEIGHTS_FILE])
    config = _config(path, spec.get("config"))
    for key, value in (
        ("history", config.history),
        ("columns", columns(config.history)),
        ("bins", edges_s().tolist()),
    ):
        if spec.get(key) != value:
            raise InputError("is not what rows and bins are made of today", file=path, field=key)
    try:
        posterior = DurationPosterior(config)
        posterior.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except (TypeError, ValueError, RuntimeError, SafetensorError) as error:
        cause = " ".join(str(error).split())
        raise InputError(f"does not fit {WEIGHTS_FILE} ({cause})", file=path) from error
    return posterior.eval()


def _config(path: Path, node: object) -> DurationConfig:
    """The settings in a spec.

    Raises:
        InputError: they are others, or out of range.
    """
    if not isinstance(node, dict):
        raise InputError("is no object", file=path, field="config")
    try:
        return DurationConfig(**node)
    except TypeError as error:
        raise InputError(f"is not that of a posterior ({error})", file=path, field="config") from (
            error
        )
    except InputError as error:
        raise InputError(error.message, file=path, field=f"config.{error.field}") from error
