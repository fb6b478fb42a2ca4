"""Hybrid plans on disk: JSON, by the names of layers and devices, so that anybody can write one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import MinLen
from pydantic import ConfigDict

from envs.bounds import Count, Positive
from envs.errors import InputError, refused_in
from envs.files import read_json
from envs.forms import Form, read_form
from envs.hybrid.plan import HybridPlan, HybridProblem, Stage, order_of_texts, order_texts
from envs.step.pipeline import play
from experiments.run.artifacts import write_json
from experiments.run.provenance import Provenance, stamp

SCHEMA_VERSION = 1
Texts = Annotated[Sequence[str], MinLen(1)]


class _Problem(Form):
    name: str = ""
    layers: Texts
    model: dict[str, Any] | None = None


class _Stage(Form):
    first: int
    end: int
    devices: Texts
    shards: Count
    shares: Sequence[Positive] | None = None
    recompute: bool


class _Document(Form):
    model_config = ConfigDict(extra="allow")  # seconds, by name

    kind: Literal["meshwright.hybrid_plan"]
    schema_version: Literal[1]
    problem: _Problem
    topology: str = ""
    micro_batches: Count
    stages: Annotated[Sequence[_Stage], MinLen(1)]
    orders: Sequence[Sequence[str]]


@dataclass(frozen=True)
class HybridDocument:
    """A plan file: the plan, whose devices are numbered as they come, and its layers' names."""

    plan: HybridPlan
    layers: tuple[str, ...]
    seconds: Mapping[str, float]  # of a step, by name
    model: Mapping[str, Any] | None  # of the zoo, whose layers these are


def write_hybrid_plan(
    path: Path,
    plan: HybridPlan,
    problem: HybridProblem,
    provenance: Provenance,
    model: Mapping[str, object] | None = None,
    **seconds: float,
) -> None:
    """Write `plan` atomically, beside `seconds` by name.

    The document: `problem` {name, layers: [names], model: of the zoo, or null}, `topology` (its
    name), `micro_batches`, `stages` [{first, end, devices: [names], shards, shares or null,
    recompute}], `orders` [the actions of every rank, as "1F3": stage, F, I, W or B, micro-batch].
    """
    document = {
        "problem": {"name": problem.name, "layers": list(problem.layer_names), "model": model},
        "topology": problem.topology.name,
        "micro_batches": plan.micro_batches,
        "stages": [
            {"first": stage.first, "end": stage.end, **assigned(stage, problem)}
            for stage in plan.stages
        ],
        "orders": order_texts(plan.orders),
        **seconds,
    }
    write_json(path, stamp(document, provenance, kind="hybrid_plan", schema_version=SCHEMA_VERSION))


def assigned(stage: Stage, problem: HybridProblem) -> dict[str, Any]:
    """Who runs a stage, and how."""
    devices = problem.topology.devices
    return {
        "devices": [devices[number].name for number in stage.devices],
        "shards": stage.shards,
        "shares": None if stage.shares is None else list(stage.shares),
        "recompute": stage.recompute,
    }


def read_hybrid_plan(path: str | Path) -> HybridDocument:
    """The plan in a file.

    Raises:
        InputError: naming the file, the stage or rank and the field: no plan file, stages that do
            not cover the layers, an order that leaves an action out or waits for ever.
    """
    document = read_form(_Document, read_json(path), path)
    layers, rows = document.problem.layers, document.stages
    names = list(dict.fromkeys(name for row in rows for name in row.devices))
    stages = tuple(_stage(row, names, path, f"stages[{number}]") for number, row in enumerate(rows))
    ends = [0, *(stage.end for stage in stages)]
    for number, (stage, begin) in enumerate(zip(stages, ends, strict=False)):
        if stage.first != begin or stage.end <= begin:
            told = f"covers layers {stage.first} to {stage.end}, after {begin}"
            raise InputError(told, file=path, record=f"stages[{number}]", field="first")
    if ends[-1] != len(layers):
        told = f"ends at layer {ends[-1]} of {len(layers)}"
        raise InputError(told, file=path, record=f"stages[{len(stages) - 1}]", field="end")
    orders = order_of_texts(document.orders, path)
    if document.micro_batches * len(stages) > sum(map(len, orders)):
        raise InputError("leave actions out", file=path, field="orders")
    plan = HybridPlan(stages, document.micro_batches, orders)
    with refused_in(path, field="orders"):
        play(plan.untimed(), orders)
    more = document.model_extra or {}
    seconds = {key: value for key, value in more.items() if isinstance(value, float)}
    return HybridDocument(plan, tuple(layers), seconds, document.problem.model)


def _stage(row: _Stage, names: list[str], path: str | Path, record: str) -> Stage:
    devices, shares = tuple(names.index(name) for name in row.devices), row.shares
    if len(set(devices)) < len(devices) or len(devices) % row.shards:
        told = f"{len(devices)} devices are not replicas of {row.shards} shards, each device once"
        raise InputError(told, file=path, record=record, field="devices")
    known = None if shares is None else tuple(map(float, shares))
    stage = Stage(row.first, row.end, devices, row.shards, known, row.recompute)
    if known is not None and (len(known) != stage.replicas or abs(sum(known) - 1.0) > 1e-6):
        told = f"are not {stage.replicas} positive numbers with the sum 1"
        raise InputError(told, file=path, record=record, field="shares")
    return stage
