"""A policy over pairs of a job and a place as a folder that needs no program: its weights, by name.

weights.safetensors   the weights; spec.json, config.yaml and README.md as beside a placer's
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from models.artifacts import (
    Shapes,
    Weights,
    atomic_folder,
    check_folder,
    read_checked_spec,
    read_weights,
)
from models.export.checkpoint import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE, ModelCard
from models.export.placer import write_beside

if TYPE_CHECKING:
    from models.cluster.pairs import PairsPolicy

KIND, VERSION = "meshwright.pairs", 1
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
    return read_policy(
        folder,
        KIND,
        VERSION,
        lambda found: pair_shapes(node, edge, pair, len(found.get("score", ()))),
    )


def read_policy(
    folder: Path, kind: str, version: int, shapes_of: Callable[[Weights], Shapes]
) -> Weights:
    """The weights by name of a folder that `write_beside` wrote, of this kind and version.

    Raises:
        InputError: the folder is not one of these, or a file in it is damaged or foreign.
    """
    check_folder(folder)
    read_checked_spec(folder, kind, version, LISTED)
    return read_weights(folder / WEIGHTS_FILE, shapes_of)
