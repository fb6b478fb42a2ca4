"""An allocators' policy as a folder, as `models.export.placer` for placers: levels of pipes.

allocator.onnx        the pipes of servers in, logits of their levels out; any sizes
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from envs.arrays import IntArray
from envs.errors import InputError
from envs.joint.piped import LEVELS, OCTAVE, PIPE, SERVER, TOP, Traffic
from models.artifacts import atomic_folder, check_folder, read_checked_spec
from models.export.checkpoint import (
    CARD_FILE,
    CONFIG_FILE,
    SPEC_FILE,
    WEIGHTS_FILE,
    ModelCard,
    onnx_session,
)
from models.export.placer import write_beside

if TYPE_CHECKING:
    from models.step.channels import PipesPolicy

KIND, VERSION = "meshwright.allocator", 1
PROGRAM_FILE = "allocator.onnx"
LISTED = (PROGRAM_FILE, WEIGHTS_FILE, CONFIG_FILE, CARD_FILE)
WIDTHS = {"pipe": PIPE, "server": SERVER, "levels": LEVELS, "octave": OCTAVE}
_INPUTS = ("pipes", "server", "mask")


class OnnxAllocator:
    """The most probable levels of an exported policy.

    Raises:
        InputError: the folder is no allocator's, or a file in it is damaged, foreign or of others.
    """

    def __init__(self, folder: Path) -> None:
        check_folder(folder)
        spec = read_checked_spec(folder, KIND, VERSION, LISTED)
        if spec.get("widths") != WIDTHS:
            message = "is of other features than these"
            raise InputError(message, file=folder / SPEC_FILE, field="widths")
        self._program = onnx_session(folder / PROGRAM_FILE, _INPUTS)

    def levels(self, traffic: Traffic) -> IntArray:
        """(S, S - 1) of the pipes to the other servers."""
        given = {"pipes": traffic.pipes, "server": traffic.servers, "mask": traffic.mask}
        (logits,) = self._program.run(["logits"], given)
        return np.asarray(logits.argmax(axis=-1) - TOP, np.int64)


def export_allocator(policy: PipesPolicy, folder: Path, card: ModelCard) -> Path:
    """Write the folder, whole or not at all; one already there is replaced."""
    import torch

    from models.export.programs import program_of, write_onnx

    batch, pipes = torch.export.Dim("B"), torch.export.Dim("E")
    given = (torch.ones(2, 5, PIPE), torch.ones(2, SERVER), torch.ones(2, 5, dtype=torch.bool))
    each = {0: batch, 1: pipes}
    with atomic_folder(folder) as temporary:
        program = program_of(policy.eval(), given, (each, {0: batch}, each))
        write_onnx(program, _INPUTS, ("logits",), temporary / PROGRAM_FILE)
        spec = {
            "kind": KIND, "schema_version": VERSION, "widths": WIDTHS,
            "config": asdict(policy.config),
        }  # fmt: skip
        write_beside(policy, temporary, card, spec)
    return folder
