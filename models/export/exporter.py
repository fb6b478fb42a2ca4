"""Writes a policy as a scheduler checkpoint (`models.export.checkpoint`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from torch.export import Dim

from envs.cluster.environment.observation import HIGH, LOW
from envs.errors import InputError
from models.architecture import MASKED_LOGIT
from models.artifacts import atomic_folder, save_weights
from models.cluster.hierarchical import HierarchicalPolicy
from models.export.checkpoint import (
    CLUSTER,
    CONFIG_FILE,
    ONNX_FILE,
    PT2_FILE,
    SPEC_FILE,
    WEIGHTS_FILE,
    ExpertSpec,
    ModelCard,
    describe,
)
from models.export.programs import program_of, write_onnx
from models.layout import (
    cluster_layout,
    num_cluster_actions,
)

ENVIRONMENT = "meshwright/ClusterParallel-v0"  # whose observations the policy reads


class ClusterForm(nn.Module):
    """The policy on one observation: arrays in layout order, (A,) logits and () value out.

    Args:
        policy: it.
        expert: the policy whose action it is shown; None: none, or another program's.

    Raises:
        InputError: there is an expert, and the policy has no input for its action.
    """

    takes = "clusters of any number of racks, servers, jobs and other schedulers"

    def __init__(self, policy: HierarchicalPolicy, expert: ExpertSpec | None = None) -> None:
        if expert is not None and not policy.widths.advised:
            raise InputError("the policy is not shown an expert's action", field="adviser")
        super().__init__()
        self.policy = policy
        if expert is not None:
            self.takes = f"{type(self).takes}, and an expert's action, by `spec.json`"
        self.more: Mapping[str, Any] = {} if expert is None else {"adviser": expert.document}
        self.folders: Mapping[str, Path] = {} if expert is None else expert.folders
        self.layout = cluster_layout(policy.widths)
        self.sizes = {
            "N": "servers, >= 1",
            "R": "racks, >= 1",
            "M": "running jobs, >= 1",
            "W": "pending jobs, >= 1",
            "E": "shares of running jobs, >= 1",
            **({"F": "other schedulers, >= 0"} if policy.widths.peer else {}),
            "A": f"actions, W (N + R + 1{' + F' if policy.widths.peer else ''})"
            f"{' + M' if policy.preemption else ''} + 1",
        }
        self.action: dict[str, Any] = {
            "decision": "argmax of logits"
            if policy.widths.advised
            else "the most probable of: start job w (the sum over its server groups), "
            "forward job w to f, preempt p, wait; of the job to start the most probable group",
            "numbering": "w (N + R + 1) + g; then forwards, preemptions, wait",
            "preemption": policy.preemption,
            "value": "of the scheduler's own observation"
            + (", without the critic's part that sees all schedulers" * bool(policy.widths.state)),
        }

    def forward(self, *arrays: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and value."""
        named = zip(self.layout, arrays, strict=True)
        observation = {item.name: array.unsqueeze(0) for item, array in named}
        outlook = self.policy.assess(observation, packed=False)
        return outlook.logits.squeeze(0), outlook.value.squeeze(0)

    def sample(self) -> tuple[Tensor, ...]:
        """A small valid observation: zeros, all masks 1; by distinct sizes tracing ties no two."""
        sizes = {"N": 7, "R": 3, "M": 5, "W": 4, "E": 11}
        if self.policy.widths.peer:
            sizes["F"] = 2
        sizes["A"] = num_cluster_actions(sizes, self.policy.preemption)
        arrays = []
        for item in self.layout:
            shape = tuple(sizes[n] if isinstance(n, str) else n for n in item.shape)
            filled = torch.ones if item.name.endswith("mask") else torch.zeros
            arrays.append(filled(shape, dtype=getattr(torch, item.dtype)))
        return tuple(arrays)


def export_scheduler(
    policy: HierarchicalPolicy, folder: Path, card: ModelCard, expert: ExpertSpec | None = None
) -> Path:
    """Write the checkpoint folder, whole or not at all; a folder already there is replaced.

    With an expert, whose action the policy is shown, the folder says who it is. The policy is left
    as it is.

    Returns:
        `folder`.

    Raises:
        InputError: the policy has no input for it.
    """
    form = ClusterForm(policy, expert)
    training = policy.training
    policy.eval()
    dims = {letter: Dim(letter) for letter in form.sizes}
    shapes = [
        {axis: dims[n] for axis, n in enumerate(item.shape) if isinstance(n, str)}
        for item in form.layout
    ]
    program = program_of(form, form.sample(), (tuple(shapes),))
    policy.train(training)
    with atomic_folder(folder) as temporary:
        torch.export.save(program, temporary / PT2_FILE)
        names = [item.name for item in form.layout]
        letters = [*(item.shape for item in form.layout), ("A",)]
        write_onnx(program, names, ["logits", "value"], temporary / ONNX_FILE, letters)
        save_weights(policy, temporary / WEIGHTS_FILE)
        (temporary / CONFIG_FILE).write_text(card.config_yaml, encoding="utf-8")
        parameters = sum(value.numel() for value in policy.parameters())
        spec = {
            "units": {"logits": "1", "value": "reward"},
            "environment": ENVIRONMENT,
            "observation_kind": CLUSTER,
            "observation": [asdict(item) for item in form.layout],
            "sizes": form.sizes,
            "normalisation": {"by": ENVIRONMENT, "bounds": [LOW, HIGH]},
            "action": {
                "outputs": [
                    {"name": "logits", "dtype": "float32", "shape": ["A"]},
                    {"name": "value", "dtype": "float32", "shape": []},
                ],
                **form.action,
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
            **form.more,
        }
        about = (
            f"The policy of a cluster's scheduler for `{ENVIRONMENT}` with {parameters:,} "
            f"parameters; it takes {form.takes}.\n`{SPEC_FILE}` describes its input and output, "
            f"`{ONNX_FILE}` and `{PT2_FILE}` run it, `{WEIGHTS_FILE}` holds its weights, "
            f"`{CONFIG_FILE}` how it was trained.\n\n"
        )
        describe(temporary, card.markdown(about), spec, form.folders)
    return folder
