"""What torch runs of a hybrid plan: named layers a stage, a rank a stage, the order of every rank.

`torch.distributed.pipelining` knows stages of layers in a row, each on one process, and pipelines
side by side. What else a plan may say is refused, never left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envs.errors import InputError, refused_in
from envs.hybrid.plan import HybridPlan, order_texts
from envs.step.pipeline import Orders, Work
from experiments.step.hybrid_file import read_hybrid_plan
from experiments.step.problem import zoo_node


@dataclass(frozen=True)
class Split:
    """A plan as torch runs it.

    Attributes:
        layers: of every stage.
        rank: (S,) of every stage; ranks are processes of one pipeline.
        recompute: (S,) whether only a stage's input is kept.
        replicas: pipelines side by side, each on its part of a batch.
        orders: the list of every rank.
        planned: seconds of a step that the file tells, by name.
        graph: the model of the zoo that the file says was captured, as a config; None: none.
    """

    name: str
    layers: tuple[tuple[str, ...], ...]
    rank: tuple[int, ...]
    recompute: tuple[bool, ...]
    replicas: int
    micro_batches: int
    orders: Orders
    planned: Mapping[str, float]
    graph: Mapping[str, object] | None = None

    @property
    def ranks(self) -> int:
        """Processes of one pipeline."""
        return max(self.rank) + 1

    @property
    def processes(self) -> int:
        """All there are."""
        return self.ranks * self.replicas

    @property
    def csv(self) -> str:
        """The orders as torch reads them, compute only: a line per rank."""
        return "".join(f"{','.join(row)}\n" for row in order_texts(self.orders))

    def document(self) -> dict[str, object]:
        """The rest, as `train.py` reads it."""
        parts = zip(self.rank, self.layers, self.recompute, strict=True)
        stages = [{"rank": r, "layers": list(x), "recompute": again} for r, x, again in parts]
        return {
            "name": self.name,
            "micro_batches": self.micro_batches,
            "replicas": self.replicas,
            "stages": stages,
        }


def read_split(path: str | Path) -> Split:
    """What torch runs of the plan in a file.

    Raises:
        InputError: the file is no hybrid plan, or torch cannot run it; naming record and field.
    """
    document = read_hybrid_plan(path)
    plan = document.plan
    if len(set(document.layers)) < len(document.layers):
        raise InputError("two have one name", file=path, record="problem", field="layers")
    with refused_in(path, "problem"):
        graph = None if document.model is None else zoo_node(document.model)
    _check(plan, path)
    return Split(
        name=Path(path).stem,
        layers=tuple(document.layers[stage.first : stage.end] for stage in plan.stages),
        rank=plan.rank,
        recompute=tuple(stage.recompute for stage in plan.stages),
        replicas=plan.stages[0].replicas,
        micro_batches=plan.micro_batches,
        orders=plan.orders,
        planned=document.seconds,
        graph=graph,
    )


def _check(plan: HybridPlan, path: str | Path) -> None:
    """Refuse what the runtime of torch does not do."""
    for number, stage in enumerate(plan.stages):
        record = f"stage {number}"
        if stage.shards > 1:
            fault = f"torch's pipelines shard no layers, the stage has {stage.shards} shards"
            raise InputError(fault, file=path, record=record, field="shards")
        if stage.replicas != plan.stages[0].replicas:
            fault = (
                f"torch runs whole pipelines side by side: {stage.replicas} replicas here, "
                f"{plan.stages[0].replicas} of stage 0"
            )
            raise InputError(fault, file=path, record=record, field="devices")
        if len(set(stage.shares or ())) > 1:
            fault = f"torch divides micro-batches evenly over replicas, not by {stage.shares}"
            raise InputError(fault, file=path, record=record, field="shares")
    groups = dict.fromkeys(stage.devices for stage in plan.stages)
    if max(Counter(device for group in groups for device in group).values()) > 1:
        raise InputError("a device is in two different groups", file=path, field="stages")
    if len(plan.orders) != len(groups):
        fault = f"{len(plan.orders)} lists for {len(groups)} groups of devices"
        raise InputError(fault, file=path, field="orders")
    last = len(plan.stages) - 1
    order = plan.orders[plan.rank[last]]
    forward = [a.micro_batch for a in order if (a.work, a.stage) == (Work.FORWARD, last)]
    if forward != sorted(forward):
        fault = "the last stage takes micro-batches out of turn, where torch mixes up their losses"
        raise InputError(fault, file=path, field="orders")
