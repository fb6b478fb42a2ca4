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
from envs.hybrid.plan import HybridPlan, Stage, order_of_texts, order_texts, stage_faults
from envs.hybrid.problem import HybridProblem
from envs.step.pipeline import play
from experiments.run.artifacts import write_json
from experiments.run.provenance import Provenance, stamp

SCHEMA_VERSION = 1
_SUM_SLACK = 1e-6  # what the shares of a file may miss 1 by
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
    stages = tuple(
        Stage(
            row.first, row.end, tuple(map(names.index, row.devices)), row.shards,
            None if row.shares is None else tuple(map(float, row.shares)), row.recompute,
        )
        for row in rows
    )  # fmt: skip
    for number, field, fault in stage_faults(stages, len(layers), _SUM_SLACK):
        raise InputError(fault, file=path, record=f"stages[{number}]", field=field)
    orders = order_of_texts(document.orders, path)
    if document.micro_batches * len(stages) > sum(map(len, orders)):
        raise InputError("leave actions out", file=path, field="orders")
    plan = HybridPlan(stages, document.micro_batches, orders)
    with refused_in(path, field="orders"):
        play(plan.untimed(), orders)
    more = document.model_extra or {}
    seconds = {key: value for key, value in more.items() if isinstance(value, float)}
    return HybridDocument(plan, tuple(layers), seconds, document.problem.model)
