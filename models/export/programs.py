"""Modules of torch as programs, and programs as ONNX files."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram


def program_of(
    module: nn.Module, arguments: tuple[Tensor, ...], dynamic: tuple[Any, ...]
) -> ExportedProgram:
    """`module` as a program, with nothing of the machine in it; `dynamic`: of torch.export."""
    program = torch.export.export(module, arguments, dynamic_shapes=dynamic)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of the machine that exported
    program.example_inputs = None  # would be the archive's only pickle
    return program


def write_onnx(
    program: ExportedProgram,
    inputs: Sequence[str],
    outputs: Sequence[str],
    path: Path,
    shapes: Sequence[Sequence[str | int]] = (),
) -> None:
    """Write `program`; a letter in `shapes`, of inputs and outputs in turn, names a dimension."""
    with _quiet_exporter():
        exported = torch.onnx.export(
            program, (), input_names=inputs, output_names=outputs, dynamo=True, verbose=False
        )
    if exported is None:
        raise RuntimeError("the dynamo exporter returned no program")
    model = exported.model_proto
    for value, shape in zip([*model.graph.input, *model.graph.output], shapes, strict=False):
        for dim, letter in zip(value.type.tensor_type.shape.dim, shape, strict=True):
            if isinstance(letter, str):
                dim.dim_param = letter
    del model.graph.value_info[:], model.metadata_props[:]
    for node in model.graph.node:
        del node.metadata_props[:]
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Without the exporter's notes on operators of packages that are not in use here."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield
    log.setLevel(level)
