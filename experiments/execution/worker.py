"""One process of a run: its stages of every plan, step after step, beside the unsplit model.

`experiments.execution.processes` starts it.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import PipelineStage

from envs.errors import InputError, refused_in
from envs.files import read_json
from envs.step.pipeline import Bar, Work
from experiments.config.targets import build, build_as
from experiments.execution.captured import CapturedLayers, WithoutDropout
from experiments.execution.processes import MEETING, TASK
from experiments.execution.train import SPLIT_FILE, Pipeline, mesh_of
from experiments.step.problem import RunnableSource

Document = dict[str, Any]


class RecordedStage(PipelineStage):
    """A stage that notes when each of its actions began and ended."""

    def __init__(self, bars: list[Bar], *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._bars = bars

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        output = super().forward_one_chunk(fwd_chunk_id, *arguments, **named)
        self._note(Work.FORWARD, fwd_chunk_id, start)
        return output

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Any = None,
        full_backward: bool = True,
        last_backward: Any = False,
    ) -> None:
        start = time.perf_counter()
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        self._note(Work.BACKWARD if full_backward else Work.INPUT, bwd_chunk_id, start)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **named: Any) -> None:
        start = time.perf_counter()
        super().backward_weight_one_chunk(bwd_chunk_id, *arguments, **named)
        self._note(Work.WEIGHT, bwd_chunk_id, start)

    def _note(self, work: Work, micro_batch: int, start: float) -> None:
        self._bars.append(Bar(work, self.stage_index, micro_batch, start, time.perf_counter()))


class Unsplit:
    """The same model in one piece, trained on whole batches."""

    def __init__(self, model: Any, learning_rate: float) -> None:
        self.module, self._loss = self._whole(model), model.loss
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=learning_rate)
        self.losses: list[float] = []

    def passes(self, inputs: Any, targets: Tensor) -> None:
        """Forward and backward of a batch; the gradients stay."""
        self.optimizer.zero_grad()
        self.losses.append(self._backward(inputs, targets))

    def gradient(self, layer: str, parameter: str) -> Tensor | None:
        """That of a parameter by its name in a layer."""
        return self._layers[layer].get_parameter(parameter).grad

    def _whole(self, model: Any) -> nn.Module:
        self._layers: dict[str, nn.Module] = model.layers()
        return nn.Sequential(*self._layers.values())

    def _backward(self, inputs: Any, targets: Tensor) -> float:
        loss: Tensor = self._loss(self.module(inputs), targets)
        loss.backward()
        return loss.item()


class UnsplitModule(Unsplit):
    """A captured module as it is, not cut, without dropout; a micro-batch after the other."""

    def gradient(self, layer: str, parameter: str) -> Tensor | None:
        return self.module.get_parameter(parameter).grad

    def _whole(self, model: CapturedLayers) -> nn.Module:
        return model.whole()

    def _backward(self, inputs: Any, targets: Tensor) -> float:
        total = 0.0
        for number in range(len(targets)):
            with WithoutDropout():
                loss = self.module(**CapturedLayers.one(inputs, number)) / len(targets)
            loss.backward()
            total += loss.item()
        return total


class Trained:
    """A plan at work: its pipeline, and what was seen of it."""

    def __init__(self, folder: Path, model: Any, learning_rate: float) -> None:
        self._bars: list[Bar] = []
        self.seen: Document = {"steps": [], "losses": [], "gradient_difference": 0.0}

        def loss(output: Tensor, target: Tensor) -> Tensor:
            found: Tensor = model.loss(output, target)
            if self._bars:  # the loss is part of the last stage's forward pass
                self._bars[-1] = self._bars[-1]._replace(finish=time.perf_counter())
            return found

        mesh = mesh_of(folder, "cpu")
        self._here = mesh.get_coordinate() is not None
        if self._here:
            device, stage_type = torch.device("cpu"), partial(RecordedStage, self._bars)
            self._pipeline = Pipeline(folder, model.layers(), loss, mesh, device, stage_type)
            trained = self._pipeline.parameters() or [nn.Parameter(torch.zeros(1))]
            self._optimizer = torch.optim.SGD(trained, lr=learning_rate)

    def train(self, inputs: Tensor, targets: Tensor, unsplit: Unsplit | None) -> None:
        """One step; its gradients are compared with those of `unsplit`."""
        distributed.barrier()
        if not self._here:
            return
        self._bars.clear()
        times = [time.perf_counter()]
        self.seen["losses"].append(self._pipeline.passes(inputs, targets))
        times.append(time.perf_counter())
        self._pipeline.synchronise()
        times.append(time.perf_counter())
        self.seen["steps"].append({"times": times, "bars": [list(bar) for bar in self._bars]})
        if unsplit is not None:
            difference = max(self.seen["gradient_difference"], self._difference(unsplit))
            self.seen["gradient_difference"] = difference
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _difference(self, unsplit: Unsplit) -> float:
        """The largest of a gradient, over the largest gradient."""
        furthest = largest = 0.0
        for part in self._pipeline.parts:
            for name, layer in zip(part.names, part.row, strict=True):
                for key, mine in layer.named_parameters():
                    theirs = unsplit.gradient(name, key)
                    if theirs is None:  # nothing that is trained depends on it
                        continue
                    assert mine.grad is not None
                    furthest = max(furthest, float((mine.grad - theirs).abs().max()))
                    largest = max(largest, float(theirs.abs().max()))
        return furthest / largest


def work(folder: Path, process: int) -> Document:
    """Run the task in `folder`; what was seen of every plan, and the unsplit model's losses.

    Raises:
        InputError: a plan is of other layers than the model, or its micro-batches do not divide.
    """
    task = read_json(folder / TASK)
    splits = {name: read_json(folder / name / SPLIT_FILE) for name in task["plans"]}
    models = {
        name: _model(task, splits[name], *arguments) for name, arguments in task["plans"].items()
    }
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder / MEETING}",
        rank=process,
        world_size=task["processes"],
        timeout=timedelta(seconds=task["limit_s"]),
    )
    rate = task["learning_rate"]
    plans = {name: Trained(folder / name, model, rate) for name, model in models.items()}
    alike: dict[str, list[str]] = {}  # plans that train one model on the same batches
    for name, (_, graph) in task["plans"].items():
        of = [graph, splits[name]["micro_batches"], graph and splits[name]["replicas"]]
        alike.setdefault(json.dumps(of), []).append(name)
    unsplit = {
        key: (UnsplitModule if isinstance(models[of[0]], CapturedLayers) else Unsplit)(
            models[of[0]], rate
        )
        for key, of in alike.items()
    }
    for step in range(task["steps"]):
        for key, whole in unsplit.items():
            model, size = models[alike[key][0]], splits[alike[key][0]]["micro_batches"]
            inputs, targets = model.batch(step, size * model.micro_batch)
            checked = whole if step < task["checked"] else None
            if checked is not None:
                checked.passes(inputs, targets)
            for name in alike[key]:
                plans[name].train(inputs, targets, checked)
            if checked is not None:
                checked.optimizer.step()
    distributed.barrier()
    distributed.destroy_process_group()
    losses = {name: unsplit[key].losses for key, of in alike.items() for name in of}
    return {"plans": [{**x.seen, "unsplit_losses": losses[name]} for name, x in plans.items()]}


def _model(task: Document, split: Document, file: str, graph: Document | None) -> Any:
    """What a plan trains: the module that it was captured of, or the layers of the config."""
    names = [layer for stage in split["stages"] for layer in stage["layers"]]
    if graph is not None:
        source = build_as(RunnableSource, graph, "graph", "model that can be run")
        with refused_in(file):
            workload = source.workload(split["replicas"])
            return CapturedLayers(workload, names, split["replicas"], task["seed"])
    model = build(task["layers"], "layers")
    own = list(model.layers())
    if names != own:
        fault = f"the plan's layers are not those of {task['layers']['_target_']}: "
        raise InputError(fault + ", ".join(own), file=file, field="layers")
    if model.micro_batch % split["replicas"]:
        fault = f"a micro-batch of {model.micro_batch} does not divide over the replicas"
        raise InputError(fault, file=file, field="stages")
    return model
