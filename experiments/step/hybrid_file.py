"""Hybrid plans on disk: JSON, by the names of layers and devices, so that anybody can write one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.errors import InputError
from envs.files import read_json
from envs.hybrid.plan import HybridPlan, Stage, order_of_texts, order_texts
from envs.hybrid.problem import HybridProblem
from envs.step.pipeline import play
from experiments.run.artifacts import write_json
from experiments.run.provenance import Provenance, stamp

KIND = "meshwright.hybrid_plan"
SCHEMA_VERSION = 1
_STAGE = ("first", "end", "devices", "shards", "shares", "recompute")


@dataclass(frozen=True)
class HybridDocument:
    """A plan file: the plan by numbers, and the names that the numbers stand for."""

    plan: HybridPlan
    problem: str
    layers: tuple[str, ...]
    topology: str
    devices: tuple[str, ...]  # those that the plan uses; stages name them by their place here
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
    devices = problem.topology.devices
    document = {
        "problem": {"name": problem.name, "layers": list(problem.layer_names), "model": model},
        "topology": problem.topology.name,
        "micro_batches": plan.micro_batches,
        "stages": [
            {
                "first": stage.first,
                "end": stage.end,
                "devices": [devices[number].name for number in stage.devices],
                "shards": stage.shards,
                "shares": None if stage.shares is None else list(stage.shares),
                "recompute": stage.recompute,
            }
            for stage in plan.stages
        ],
        "orders": order_texts(plan.orders),
        **seconds,
    }
    write_json(path, stamp(document, provenance, kind="hybrid_plan", schema_version=SCHEMA_VERSION))


def read_hybrid_plan(path: str | Path) -> HybridDocument:
    """The plan in a file.

    Raises:
        InputError: naming the file, the stage or rank and the field: no plan file, stages that do
            not cover the layers, an order that leaves an action out or waits for ever.
    """
    document = read_json(path)
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise InputError(f"is no hybrid plan: 'kind' is not {KIND!r}", file=path, field="kind")
    if document.get("schema_version") != SCHEMA_VERSION:
        told = f"is {document.get('schema_version')!r}, this release reads {SCHEMA_VERSION}"
        raise InputError(told, file=path, field="schema_version")
    described = _field(document, "problem", dict, path)
    layers = _texts(described, "layers", path, "problem")
    rows = _field(document, "stages", list, path)
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError("is not a list of stages", file=path, field="stages")
    names = list(
        dict.fromkeys(
            name
            for number, row in enumerate(rows)
            for name in _texts(row, "devices", path, f"stage {number}")
        )
    )
    stages = tuple(_stage(row, names, path, f"stage {number}") for number, row in enumerate(rows))
    ends = [0, *(stage.end for stage in stages)]
    for number, (stage, begin) in enumerate(zip(stages, ends, strict=False)):
        if stage.first != begin or stage.end <= begin:
            told = f"covers layers {stage.first} to {stage.end}, after {begin}"
            raise InputError(told, file=path, record=f"stage {number}", field="first")
    if ends[-1] != len(layers):
        told = f"ends at layer {ends[-1]} of {len(layers)}"
        raise InputError(told, file=path, record=f"stage {len(stages) - 1}", field="end")
    micro_batches = _field(document, "micro_batches", int, path)
    orders = order_of_texts(_field(document, "orders", list, path), path)
    if micro_batches * len(stages) > sum(map(len, orders)):
        raise InputError("leave actions out", file=path, field="orders")
    plan = HybridPlan(stages, micro_batches, orders)
    try:
        play(plan.untimed(), orders)
    except InputError as error:
        raise InputError(error.message, file=path, field="orders") from error
    return HybridDocument(
        plan,
        str(described.get("name")),
        tuple(layers),
        str(document.get("topology")),
        tuple(names),
        {key: seconds for key, seconds in document.items() if isinstance(seconds, float)},
        None
        if described.get("model") is None
        else _field(described, "model", dict, path, "problem"),
    )


def _stage(row: Mapping[str, Any], names: list[Any], path: str | Path, record: str) -> Stage:
    for key in row:
        if key not in _STAGE:
            known = ", ".join(_STAGE)
            raise InputError(f"unknown key (known: {known})", file=path, record=record, field=key)
    devices = tuple(names.index(name) for name in row["devices"])
    shards = _field(row, "shards", int, path, record)
    shares = row.get("shares")
    if not devices or len(set(devices)) < len(devices) or shards < 1 or len(devices) % shards:
        told = f"{len(devices)} devices are not replicas of {shards} shards, each device once"
        raise InputError(told, file=path, record=record, field="devices")
    stage = Stage(
        _field(row, "first", int, path, record),
        _field(row, "end", int, path, record),
        devices,
        shards,
        recompute=bool(_field(row, "recompute", bool, path, record)),
    )
    if shares is None:
        return stage
    numbers = isinstance(shares, list) and all(
        isinstance(share, int | float) and not isinstance(share, bool) and share > 0
        for share in shares
    )
    if not numbers or len(shares) != stage.replicas or abs(sum(shares) - 1.0) > 1e-6:
        told = f"are not {stage.replicas} positive numbers with the sum 1"
        raise InputError(told, file=path, record=record, field="shares")
    return Stage(
        stage.first, stage.end, devices, shards, tuple(map(float, shares)), stage.recompute
    )


def _texts(row: Mapping[str, Any], key: str, path: str | Path, record: str) -> list[str]:
    found: list[str] = _field(row, key, list, path, record)
    if not all(isinstance(text, str) for text in found):
        raise InputError("is no list of texts", file=path, record=record, field=key)
    return found


def _field(
    row: Mapping[str, Any], key: str, kind: type, path: str | Path, record: str | None = None
) -> Any:
    value = row.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        told = "is missing" if key not in row else f"{value!r} is no {kind.__name__}"
        raise InputError(told, file=path, record=record, field=key)
    return value
