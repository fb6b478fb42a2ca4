"""How schedulers choose a cell for a job, as a folder that needs no program: weights, by name.

weights.safetensors   the weights; spec.json, config.yaml and README.md as beside a placer's
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from models.artifacts import Weights, atomic_folder
from models.export.checkpoint import ModelCard
from models.export.pairs import read_policy
from models.export.placer import write_beside
from models.layout import cell_shapes

if TYPE_CHECKING:
    from models.cluster.cells import CellsPolicy

KIND, VERSION = "meshwright.cells", 1


def export_cells(policy: CellsPolicy, folder: Path, card: ModelCard) -> Path:
    """Write the folder, whole or not at all; one already there is replaced."""
    with atomic_folder(folder) as temporary:
        spec = {"kind": KIND, "schema_version": VERSION, "config": asdict(policy.config)}
        write_beside(policy.actor, temporary, card, spec)
    return folder


def read_cells(folder: Path) -> Weights:
    """The weights by name.

    Raises:
        InputError: the folder is not one of these, or a file in it is damaged or foreign.
    """
    return read_policy(
        folder, KIND, VERSION,
        lambda found: cell_shapes(len(found["last"]) if "last" in found else 0),
    )  # fmt: skip
