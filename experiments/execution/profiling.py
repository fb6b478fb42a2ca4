"""Measure each layer of a model on this machine: a profile that planners read.

python -m experiments.execute profile=layers.txt
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from annotated_types import Ge

from envs.bounds import Count
from envs.errors import InputError
from envs.units import MILLISECOND
from experiments.config.targets import build
from experiments.reporting.tables import Table, write_tables
from experiments.run.artifacts import write_sidecar, write_text
from experiments.run.one_run import Result, Run

PASSES = ("forward", "backward", "input_gradient", "weight_gradient")


@dataclass(kw_only=True)
class ProfileConfig:
    """`conf/execute_profile.yaml`; `layers` is an object by `_target_`."""

    profile: str  # the file to write: PipeDream's format, for experiments.plan graph=<file>
    layers: Any
    warm_up: Annotated[int, Ge(0)] = 3  # passes of each layer that are not counted
    repeats: Count = 20  # passes of which the median is written
    seed: int
    json: bool


@dataclass(frozen=True)
class Layer:
    """A layer with a whole micro-batch: median seconds of each of `PASSES`, and bytes."""

    name: str
    seconds: dict[str, float]
    output_bytes: int
    parameter_bytes: int

    def line(self) -> str:
        """As a node of PipeDream's profiles, in ms; the halves of the backward pass beside."""
        forward, backward, by_input, by_weight = (self.seconds[key] / MILLISECOND for key in PASSES)
        return (
            f"{self.name} -- {self.name} -- forward_compute_time={forward:.6f}, "
            f"backward_compute_time={backward:.6f}, activation_size={self.output_bytes:.1f}, "
            f"parameter_size={self.parameter_bytes:.1f}, input_gradient_time={by_input:.6f}, "
            f"weight_gradient_time={by_weight:.6f}"
        )


def profile(config: ProfileConfig, run: Run) -> Result:
    """Measure the layers one after the other and write their profile."""
    model = build(config.layers, "layers")
    file = Path(config.profile)
    if os.path.lexists(file):
        raise InputError("is there already", file=file, field="profile")
    layers = measure(model, config.warm_up, config.repeats)
    edges = [f"{a.name} -- {b.name}" for a, b in pairwise(layers)]
    write_text(file, "\n".join([*(layer.line() for layer in layers), *edges, ""]))
    write_sidecar(file, run.provenance, "layer_profile")
    rows = [[x.name, *(f"{x.seconds[key] / MILLISECOND:.3f}" for key in PASSES)] for x in layers]
    columns = ["layer", *(f"{key} (ms)" for key in PASSES)]
    write_tables(run, "Layers", [Table("Layers", columns, rows)], run.provenance)
    seconds = {f"{key}_s": [layer.seconds[key] for layer in layers] for key in PASSES}
    return Result(
        {"profile": str(file), "layers": len(layers), **seconds},
        run.provenance,
        ("profile", "layers"),
    )


def measure(model: Any, warm_up: int, repeats: int) -> list[Layer]:
    """Every layer of a model with one micro-batch, on one thread, as torch's pipelines compute it.

    The gradient of the first layer's input is not asked for: all of its backward pass is that of
    its weights. The loss is part of the last layer.
    """
    import torch
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

    torch.set_num_threads(1)
    x, target = model.batch(0, model.micro_batch)
    layers = model.layers()
    found = []
    for number, (name, layer) in enumerate(layers.items()):
        taken: dict[str, list[float]] = defaultdict(list)

        def clocked(key: str, call: Callable[..., Any], *arguments: Any) -> Any:
            start = time.perf_counter()
            result = call(*arguments)
            taken[key].append(time.perf_counter() - start)  # noqa: B023, of this layer
            return result

        def run(y: Any, last: bool = number == len(layers) - 1, layer: Any = layer) -> Any:
            output = layer(y)
            return model.loss(output, target) if last else output

        parameters = list(layer.parameters())
        for _ in range(warm_up + repeats):
            output = clocked("forward", run, x.detach().requires_grad_(number > 0))
            gradient = torch.ones_like(output)
            clocked("backward", output.backward, gradient)
            if number > 0:
                y = x.detach().requires_grad_()
                known = [run(y)], [gradient], [y], iter(parameters)
                _, groups = clocked("input_gradient", stage_backward_input, *known)
                clocked("weight_gradient", stage_backward_weight, iter(parameters), groups)
            layer.zero_grad()
        if number == 0:
            taken |= {"input_gradient": [0.0] * len(taken["forward"])}
            taken["weight_gradient"] = taken["backward"]
        x = layer(x).detach()
        seconds = {key: median(taken[key][warm_up:]) for key in PASSES}
        held = sum(p.numel() * p.element_size() for p in parameters)
        found.append(Layer(name, seconds, x.numel() * x.element_size(), held))
    return found
