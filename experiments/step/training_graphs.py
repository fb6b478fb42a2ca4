"""Training steps of real models to learn placement from: captured once, contracted, cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from envs.cost import RooflineCost
from envs.errors import InputError
from envs.graphs.op_graph import OpGraph
from envs.graphs.zoo import cached_graph, zoo_graph
from envs.graphs.zoo_models import ZOO
from envs.hardware.builders import DEVICES, mixed
from envs.hardware.servers import PcieServer
from envs.step.fusion import fuse
from envs.step.problem import StepProblem
from experiments.run.provenance import file_hash

_PCIE = {"medium": "PCIe 3.0 x16", "bandwidth": "15.75GB/s", "latency": "2us"}
_VERSION = 2  # raised with every change of what contracting gives


@dataclass(frozen=True)
class TrainingGraphs:
    """Captured training steps, contracted to groups, with seconds on every kind of device.

    Each is read, or captured and contracted, when it is first asked for.

    Args:
        models: of each, `name` of a model of the zoo or of `experiments.step.captured_models`, and
            the arguments it takes: batch, micro_batches, sequence.
        groups: groups that each is contracted to, at most.

    Raises:
        InputError: an entry has no name.
    """

    models: Sequence[Mapping[str, Any]] = (
        {"name": "bert_base", "batch": 128, "sequence": 128, "micro_batches": 16},
        {"name": "bert_base", "batch": 32, "sequence": 512, "micro_batches": 16},
        {"name": "bert_large", "batch": 64, "sequence": 128, "micro_batches": 16},
        {"name": "bert_large", "batch": 16, "sequence": 512, "micro_batches": 16},
        {"name": "gpt2", "batch": 64, "sequence": 512, "micro_batches": 16},
        {"name": "gpt2", "batch": 16, "sequence": 1024, "micro_batches": 16},
        {"name": "gpt2_medium", "batch": 32, "sequence": 512, "micro_batches": 16},
        {"name": "gpt2_large", "batch": 16, "sequence": 512, "micro_batches": 16},
        {"name": "gpt2_xl", "batch": 8, "sequence": 512, "micro_batches": 8},
        {"name": "llama_7b", "batch": 16, "sequence": 512, "micro_batches": 16},
        {"name": "llama_7b", "batch": 16, "sequence": 2048, "micro_batches": 16},
        {"name": "resnet50", "batch": 512, "micro_batches": 16},
        {"name": "resnet50", "batch": 128, "micro_batches": 16},
        {"name": "vit_base", "batch": 256, "micro_batches": 16},
        {"name": "vit_base", "batch": 64, "micro_batches": 16},
        {"name": "recommender", "batch": 16384, "micro_batches": 16},
        {"name": "swin", "batch": 256, "micro_batches": 16},
        {"name": "segformer", "batch": 64, "micro_batches": 16},
        {"name": "clip", "batch": 512, "micro_batches": 16},
    )
    groups: int = 128

    def __post_init__(self) -> None:
        for number, model in enumerate(self.models):
            if not isinstance(model.get("name"), str):
                raise InputError("has no name", record=f"model {number}", field="captured.models")

    def __len__(self) -> int:
        return len(self.models)

    def __getitem__(self, index: int) -> OpGraph:
        return _contracted(tuple(sorted(self.models[index].items())), self.groups)


@lru_cache(maxsize=64)
def _contracted(items: tuple[tuple[str, Any], ...], groups: int) -> OpGraph:
    model = dict(items)
    key = {"training": model, "groups": groups, "version": _VERSION}
    if model["name"] not in ZOO:
        key["source"] = file_hash(Path(__file__).with_name("captured_models.py"))

    def build() -> OpGraph:
        graph = _captured(**model)
        every = mixed("one of each", [PcieServer(kind, 1, _PCIE) for kind in DEVICES], _PCIE)
        seconds = RooflineCost().operator_seconds(graph, every)
        profiled = replace(graph, profile_classes=DEVICES, profile_seconds=seconds)
        return fuse(StepProblem.build(profiled, every, RooflineCost()), groups).graph

    return cached_graph(key, build)


def _captured(name: str, **shape: Any) -> OpGraph:
    if name in ZOO:
        return zoo_graph(name, **shape)
    from experiments.step.captured_models import Captured  # imports torch

    return Captured(name, **shape).load().graph
