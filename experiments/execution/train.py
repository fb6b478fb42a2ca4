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
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.utils.checkpoint import checkpoint

SPLIT_FILE, ORDER_FILE = "split.json", "order.csv"


class Part(nn.Module):
    """The layers of a stage, one after the other; `recompute`: only its input is kept."""

    def __init__(self, layers: Mapping[str, nn.Module], recompute: bool) -> None:
        super().__init__()
        self.names, self.recompute = tuple(layers), recompute
        self.row = nn.Sequential(*layers.values())

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = (
            checkpoint(self.row, x, use_reentrant=False) if self.recompute else self.row(x)
        )
        return output


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
        self.parts: list[Part] = []
        stages = []
        for number, stage in enumerate(split["stages"]):
            if stage["rank"] == mesh.get_local_rank("rank"):
                named = {name: layers[name] for name in stage["layers"]}
                part = Part(named, stage["recompute"]).to(device)
                group = mesh.get_group("rank")
                stages.append(stage_type(part, number, len(split["stages"]), device, group=group))
                self.parts.append(part)
        self.schedule = _PipelineScheduleRuntime(stages, self.micro_batches, loss_fn=loss)
        self.schedule._load_csv(str(folder / ORDER_FILE), format="compute_only")
        self._ends = any(stage.is_last for stage in stages)

    def parameters(self) -> list[nn.Parameter]:
        """Those of the stages of this process."""
        return [x for part in self.parts for x in part.parameters()]

    def passes(self, inputs: Tensor, targets: Tensor) -> float | None:
        """Forward and backward of a batch; the mean loss of this pipeline where it ends here."""
        losses: list[Tensor] | None = [] if self._ends else None
        mine = inputs.chunk(self.replicas)[self.replica], targets.chunk(self.replicas)[self.replica]
        self.schedule.step(mine[0], target=mine[1], losses=losses, return_outputs=False)
        return None if losses is None else torch.stack(losses).mean().item()

    def synchronise(self) -> None:
        """Average the gradients over the pipelines side by side."""
        if self.replicas > 1:
            for parameter in self.parameters():
                distributed.all_reduce(parameter.grad, group=self._over)
                parameter.grad /= self.replicas


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
