"""Train the model of model.py as the plan in this folder says, with torch.distributed.pipelining.

torchrun --nproc-per-node <processes> train.py <steps>

split.json says which layers a stage has and which rank of the pipeline runs it; `replicas`
pipelines run side by side, each on its part of the batch. order.csv is the list of actions of every
rank. Process p is rank p // replicas of pipeline p % replicas. Only torch is imported.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.utils.checkpoint import checkpoint

SPLIT_FILE, ORDER_FILE = "split.json", "order.csv"


class Part(nn.Module):
    """The layers of a stage, one after the other; `recompute`: only its input is kept.

    A layer takes what the one before it returns, one tensor or several, and the batch's own `data`.
    """

    def __init__(self, layers: Mapping[str, nn.Module], recompute: bool) -> None:
        super().__init__()
        self.names, self.recompute = tuple(layers), recompute
        self.row = nn.Sequential(*layers.values())

    def forward(self, *x: Tensor, **data: Tensor) -> Tensor | tuple[Tensor, ...]:
        run = partial(self._run, **data)
        output: Tensor | tuple[Tensor, ...] = (
            checkpoint(run, *x, use_reentrant=False) if self.recompute else run(*x)
        )
        return output

    def _run(self, *x: Tensor, **data: Tensor) -> Tensor | tuple[Tensor, ...]:
        for layer in self.row:
            output = layer(*x, **data)
            x = output if isinstance(output, tuple) else (output,)
        return x if len(x) > 1 else x[0]


class Pipeline:
    """The stages of this process, and the schedule that runs them.

    `mesh` has the dimensions "rank" and "replica"; `stage_type` is how a stage runs.
    """

    def __init__(
        self,
        folder: Path,
        layers: Mapping[str, nn.Module],
        loss: Callable[[Tensor, Tensor], Tensor],
        mesh: DeviceMesh,
        device: torch.device,
        stage_type: Callable[..., PipelineStage] = PipelineStage,
    ) -> None:
        split = json.loads((folder / SPLIT_FILE).read_text(encoding="utf-8"))
        self.micro_batches, self.replicas = split["micro_batches"], split["replicas"]
        self.replica = mesh.get_local_rank("replica")
        self._over = mesh.get_group("replica")
        self._within = mesh.get_group("rank")
        ranks: dict[nn.Parameter, set[int]] = {}
        self.parts: list[Part] = []
        stages = []
        for number, stage in enumerate(split["stages"]):
            part = Part({name: layers[name] for name in stage["layers"]}, stage["recompute"])
            for parameter in part.parameters():
                ranks.setdefault(parameter, set()).add(stage["rank"])
            if stage["rank"] == mesh.get_local_rank("rank"):
                self.parts.append(part.to(device))
                count = len(split["stages"])
                stages.append(stage_type(part, number, count, device, group=self._within))
        self._tied = [x for x, at in ranks.items() if len(at) > 1]
        self.schedule = _PipelineScheduleRuntime(stages, self.micro_batches, loss_fn=loss)
        self.schedule._load_csv(str(folder / ORDER_FILE), format="compute_only")
        self._ends = any(stage.is_last for stage in stages)

    def parameters(self) -> list[nn.Parameter]:
        """Those of the stages of this process."""
        return list(dict.fromkeys(x for part in self.parts for x in part.parameters()))

    def passes(self, inputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> float | None:
        """Forward and backward of a batch; the mean loss of this pipeline where it ends here.

        Inputs are the first stage's, or by name those of all stages.
        """
        losses: list[Tensor] | None = [] if self._ends else None

        def mine(whole: Tensor) -> Tensor:
            return whole.chunk(self.replicas)[self.replica]

        named = {k: mine(x) for k, x in inputs.items()} if isinstance(inputs, Mapping) else {}
        first = () if isinstance(inputs, Mapping) else (mine(inputs),)
        given: dict[str, Any] = {"target": mine(targets), "losses": losses, **named}
        self.schedule.step(*first, return_outputs=False, **given)
        return None if losses is None else torch.stack(losses).mean().item()

    def synchronise(self) -> None:
        """Sum the gradients of what several ranks use; average over the pipelines side by side."""
        for parameter in self._tied:
            self._sum(parameter, self._within)
        if self.replicas > 1:
            for parameter in self.parameters():
                self._sum(parameter, self._over)
                parameter.grad /= self.replicas

    @staticmethod
    def _sum(parameter: nn.Parameter, group: distributed.ProcessGroup) -> None:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = gradient.contiguous()
        distributed.all_reduce(parameter.grad, group=group)


def mesh_of(folder: Path, device_type: str) -> DeviceMesh:
    """The processes as ranks times replicas."""
    split = json.loads((folder / SPLIT_FILE).read_text(encoding="utf-8"))
    ranks, replicas = 1 + max(stage["rank"] for stage in split["stages"]), split["replicas"]
    processes = torch.arange(ranks * replicas).view(ranks, replicas)
    return DeviceMesh(device_type, processes, mesh_dim_names=("rank", "replica"))


def main(steps: int) -> None:
    """Train with SGD; the last rank prints the loss and the seconds of every step."""
    from model import MODEL  # type: ignore[import-not-found]  # it lies beside a copy of this

    folder = Path(__file__).parent
    on_gpu = torch.cuda.is_available()
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cpu")
    if on_gpu:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    mesh = mesh_of(folder, device.type)
    pipeline = Pipeline(folder, MODEL.layers(), MODEL.loss, mesh, device)
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
    for step in range(steps):
        start = time.perf_counter()
        inputs, targets = MODEL.batch(step, pipeline.micro_batches * MODEL.micro_batch)
        loss = pipeline.passes(inputs.to(device), targets.to(device))
        pipeline.synchronise()
        optimizer.step()
        optimizer.zero_grad()
        if loss is not None:
            seconds = time.perf_counter() - start
            print(f"step {step}, replica {pipeline.replica}: loss {loss:.6f}, {seconds:.3f} s")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
