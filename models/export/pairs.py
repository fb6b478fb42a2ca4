"""A policy over pairs of a job and a place as a folder that needs no program: its weights, by name.

weights.safetensors   the weights; spec.json, config.yaml and README.md as beside a placer's
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from envs.errors import InputError
from models.artifacts import atomic_folder, check_folder, read_checked_spec
from models.export.checkpoint import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE, ModelCard
from models.export.placer import write_beside

if TYPE_CHECKING:
    from models.cluster.pairs import PairsPolicy

KIND, VERSION = "meshwright.pairs", 1
Weights = dict[str, NDArray[np.float32]]
Shape = tuple[int, ...]
LISTED = (WEIGHTS_FILE, CONFIG_FILE, CARD_FILE)


def pair_shapes(node: int, edge: int, pair: int, width: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights by name, by the widths of features and of hidden layers."""
    return {
        "node": (node, width), "edge": (edge, width), "message": (width,), "pair": (pair, width),
        "pooled": (2 * width, width), "alone": (width,), "again": (width, width),
        "others": (width, width), "second": (width,), "score": (width,),
    }  # fmt: skip


def export_pairs(policy: PairsPolicy, folder: Path, card: ModelCard) -> Path:
    """Write the folder, whole or not at all; one already there is replaced."""
    with atomic_folder(folder) as temporary:
        spec = {"kind": KIND, "schema_version": VERSION, "config": asdict(policy.config)}
        write_beside(policy, temporary, card, spec)
    return folder


def read_pairs(folder: Path, node: int, edge: int, pair: int) -> Weights:
    """The weights by name, of a policy for features of these widths.

    Raises:
        InputError: the folder is not one of these, or a file in it is damaged or foreign.
    """
    return read_weights(
        folder,
        KIND,
        VERSION,
        lambda found: pair_shapes(node, edge, pair, len(found.get("score", ()))),
    )


def read_weights(
    folder: Path, kind: str, version: int, shapes_of: Callable[[Weights], Mapping[str, Shape]]
) -> Weights:
    """The weights by name of a folder that `write_beside` wrote.

    Args:
        folder: that holds them.
        kind: of the folder, in its spec.
        version: of the spec.
        shapes_of: what shapes they have, by the weights themselves.

    Raises:
        InputError: the folder is not one of these, or a file in it is damaged or foreign.
    """
    check_folder(folder)
    read_checked_spec(folder, kind, version, LISTED)
    try:
        found: Weights = load_file(folder / WEIGHTS_FILE)
    except (ValueError, SafetensorError) as error:
        raise InputError(f"cannot be read ({error})", file=folder / WEIGHTS_FILE) from error
    shapes = shapes_of(found)
    for name, shape in shapes.items():
        if name not in found or found[name].shape != shape or set(found) != set(shapes):
            reason = f"{name} is not of shape {shape}, or there are other weights"
            raise InputError(reason, file=folder / WEIGHTS_FILE)
    return found
