"""Writes a policy as a scheduler checkpoint (`models.checkpoint`)."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from models.artifacts import atomic_folder, hashes_of
from models.checkpoint import (
    CARD_FILE,
    CONFIG_FILE,
    KIND,
    ONNX_FILE,
    PT2_FILE,
    SCHEMA_VERSION,
    SPEC_FILE,
    WEIGHTS_FILE,
)
from models.graph_batch import GraphBatch
from models.heads import MASKED_LOGIT
from models.layout import Observation, observation_layout
from models.policy import PlacementPolicy

_SAMPLE_SIZES = {"N": 7, "E": 11, "D": 3}  # distinct, so that tracing ties no two together


@dataclass(frozen=True)
class ModelCard:
    """What a reader of the checkpoint wants to know.

    Attributes:
        title: one line.
        environment: id of the environment whose observations the policy reads.
        bounds: lowest and highest value of every feature; the environment clips to them.
        config_yaml: the resolved configuration of the training run.
        command: the command that reproduces the evaluation.
        evaluation: the table, one mapping of column to text per row, equal columns.
        remark: a sentence under the table.
        provenance: seed, package version, git commit, hashes of inputs; goes into `spec.json`.
    """

    title: str
    environment: str
    bounds: tuple[float, float]
    config_yaml: str
    command: str
    evaluation: Sequence[Mapping[str, str]] = ()
    remark: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def markdown(self, parameters: int) -> str:
        """The README of the checkpoint."""
        lines = [
            f"# {self.title}",
            "",
            f"A placement policy for `{self.environment}` with {parameters:,} parameters; it takes "
            "graphs of any number of operators, edges and devices.",
            f"`{SPEC_FILE}` describes its input and output, `{ONNX_FILE}` and `{PT2_FILE}` run it, "
            f"`{WEIGHTS_FILE}` holds its weights, `{CONFIG_FILE}` how it was trained.",
            "",
            "## Evaluation",
            "",
        ]
        if self.evaluation:
            columns = list(self.evaluation[0])
            rows = [list(row.values()) for row in self.evaluation]
            lines += [
                "| " + " | ".join(cells) + " |" for cells in [columns, ["---"] * len(columns)]
            ]
            lines += ["| " + " | ".join(cells) + " |" for cells in rows]
        else:
            lines.append("None was made for this export.")
        if self.remark:
            lines += ["", f"{self.remark[0].upper()}{self.remark[1:]}."]
        lines += ["", "Reproduce with", "", f"    {self.command}", "", "## Origin", ""]
        lines += [f"* {name}: {value}" for name, value in self.provenance.items()]
        return "\n".join(lines) + "\n"


class SingleObservation(nn.Module):
    """The policy on one observation: arrays in layout order, (D,) logits and () value out."""

    def __init__(self, policy: PlacementPolicy) -> None:
        super().__init__()
        self.policy = policy
        self._names = [item.name for item in observation_layout(policy.widths)]

    def forward(self, *arrays: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and value."""
        named = zip(self._names, arrays, strict=True)
        logits, value = self.policy(GraphBatch.of({k: v.unsqueeze(0) for k, v in named}))
        return logits.squeeze(0), value.squeeze(0)


def export_policy(policy: PlacementPolicy, folder: Path, card: ModelCard) -> Path:
    """Write the checkpoint folder, whole or not at all; a folder already there is replaced.

    Args:
        policy: the policy; it is left as it is.
        folder: the checkpoint folder.
        card: what goes with it.

    Returns:
        `folder`.
    """
    layout = observation_layout(policy.widths)
    training = policy.training
    program = _program(policy.eval())
    policy.train(training)
    weights = {name: value.contiguous() for name, value in policy.state_dict().items()}
    with atomic_folder(folder) as temporary:
        torch.export.save(program, temporary / PT2_FILE)
        _write_onnx(program, [item.name for item in layout], temporary / ONNX_FILE)
        save_file(weights, temporary / WEIGHTS_FILE)
        (temporary / CONFIG_FILE).write_text(card.config_yaml, encoding="utf-8")
        parameters = sum(value.numel() for value in policy.parameters())
        (temporary / CARD_FILE).write_text(card.markdown(parameters), encoding="utf-8")
        spec = {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "units": {"logits": "1", "value": "reward"},
            "environment": card.environment,
            "observation": [asdict(item) for item in layout],
            "sizes": {"N": "nodes, >= 1", "E": "edges, >= 1", "D": "devices, >= 1"},
            "normalisation": {"by": card.environment, "bounds": list(card.bounds)},
            "action": {
                "outputs": [
                    {"name": "logits", "dtype": "float32", "shape": ["D"]},
                    {"name": "value", "dtype": "float32", "shape": []},
                ],
                "decision": "argmax of logits: the device of the current node",
                "masked_logit": MASKED_LOGIT,
            },
            "model": {
                "class": type(policy).__name__,
                "config": asdict(policy.config),
                "widths": asdict(policy.widths),
                "parameters": parameters,
            },
            "versions": {"torch": torch.__version__, "onnx": onnx.__version__},
            "provenance": dict(card.provenance),
            "sha256": hashes_of(temporary),
        }
        text = json.dumps(spec, indent=2) + "\n"
        (temporary / SPEC_FILE).write_text(text, encoding="utf-8")
    return folder


def sample_observation(policy: PlacementPolicy) -> Observation:
    """A small valid observation, only to trace the policy with."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for item in observation_layout(policy.widths):
        shape = tuple(_SAMPLE_SIZES[n] if isinstance(n, str) else n for n in item.shape)
        filled = np.ones if item.name.endswith("mask") else np.zeros
        arrays[item.name] = filled(shape, dtype=item.dtype)
    return arrays


def _program(policy: PlacementPolicy) -> ExportedProgram:
    """The policy on one observation with N, E and D dynamic."""
    dims = {letter: Dim(letter) for letter in _SAMPLE_SIZES}
    shapes = tuple(
        {axis: dims[n] for axis, n in enumerate(item.shape) if isinstance(n, str)}
        for item in observation_layout(policy.widths)
    )
    arrays = sample_observation(policy)
    program = torch.export.export(
        SingleObservation(policy),
        tuple(map(torch.from_numpy, arrays.values())),
        dynamic_shapes=(shapes,),
    )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of the machine that exported
    program.example_inputs = None  # would be the archive's only pickle
    return program


def _write_onnx(program: ExportedProgram, names: list[str], path: Path) -> None:
    with _quiet_exporter():
        exported = torch.onnx.export(
            program, (), input_names=names, output_names=["logits", "value"], dynamo=True,
            verbose=False,
        )  # fmt: skip
    if exported is None:
        raise RuntimeError("the dynamo exporter returned no program")
    model = exported.model_proto
    symbols = {}
    by_name = {value.name: value for value in model.graph.input}
    for item, letters in (("node_mask", "N"), ("edge_mask", "E"), ("action_mask", "D")):
        symbols[by_name[item].type.tensor_type.shape.dim[0].dim_param] = letters
    for value in [*model.graph.input, *model.graph.output]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = symbols[dim.dim_param]
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
