"""Plans that move jobs as data in a checkpoint, and from it again: that decide, or that advise."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import numpy as np

from agents.cluster.migrating.adviser import MakesPriority, MigrationAdviser
from agents.cluster.migrating.learned_priority import LearnedPriority, from_folder
from agents.cluster.migrating.policy import PLAN_KIND, Migrating
from agents.cluster.migrating.priorities import (
    AttainedServiceClasses,
    RemainingService,
    RemainingTime,
    spec_of,
)
from envs.cluster.environment.observation import ADVISED
from envs.cluster.environment.views import Adviser
from envs.errors import InputError
from models.export.checkpoint import (
    DURATIONS_FOLDER,
    PLAN,
    SPEC_FILE,
    AdviserSpec,
    SchedulerCheckpoint,
)

LEARNED, ADVISER = LearnedPriority.name, "adviser"
RULES = {kind.name: kind for kind in (AttainedServiceClasses, RemainingTime, RemainingService)}
NUMBERS: dict[str, tuple[str, ...]] = {
    AttainedServiceClasses.name: ("first",),
    RemainingTime.name: (),
    RemainingService.name: (),
    LEARNED: (),
}


def described(adviser: Adviser | Migrating | None) -> AdviserSpec | None:
    """What a checkpoint says of an adviser or a plan that decides; None of none.

    Raises:
        InputError: it is none that a checkpoint can describe, or the folder that it reads holds no
            posterior.
    """
    if adviser is None:
        return None
    document, folder = spec_of(adviser)
    kind = document["priority"]["kind"] if document.get("kind") == PLAN_KIND else None
    if not isinstance(kind, str) or kind not in NUMBERS:
        message = f"{type(adviser).__name__} cannot go into a checkpoint (nothing reads its spec)"
        raise InputError(message, field="adviser")
    return AdviserSpec(document, {} if folder is None else {DURATIONS_FOLDER: folder})


def rebuilt(checkpoint: SchedulerCheckpoint) -> MigrationAdviser | None:
    """The adviser of a checkpoint; None where its policy is shown nobody's action.

    Raises:
        InputError: the spec does not describe one of those known here, or describes one although
            the policy takes no advice, or the folder that it reads is missing or damaged.
    """
    file = checkpoint.folder / SPEC_FILE
    node = checkpoint.spec.get(ADVISER)
    advised = any(item.name == ADVISED for item in checkpoint.layout)
    if not advised and node is None:
        return None
    if not advised or not isinstance(node, dict):
        told = (
            "is no object: who advises?" if advised else "goes with a policy that takes no advice"
        )
        raise InputError(told, file=file, field=ADVISER)
    return _adviser(checkpoint, node, ADVISER)


def plan_of(checkpoint: SchedulerCheckpoint) -> tuple[MigrationAdviser, Migrating]:
    """The plan that decides, for each of several schedulers and for a single one.

    Raises:
        InputError: as `rebuilt`.
    """
    file, node = checkpoint.folder / SPEC_FILE, checkpoint.spec[PLAN]
    if not isinstance(node, dict):
        raise InputError("is no object: what decides?", file=file, field=PLAN)
    adviser = _adviser(checkpoint, node, PLAN)
    wake_s = _number(node, "wake_s", 0.0, file, PLAN)
    try:
        plan = Migrating(adviser.priority(), adviser.gain, adviser.least_run_s, wake_s)
    except InputError as error:
        raise InputError(error.message, file=file, field=f"{PLAN}.{error.field}") from error
    return adviser, plan


def _adviser(checkpoint: SchedulerCheckpoint, node: dict[str, Any], at: str) -> MigrationAdviser:
    """The one that a node of the spec describes."""
    file = checkpoint.folder / SPEC_FILE
    if node.get("kind") != PLAN_KIND:
        told = f"{node.get('kind')!r} is unknown (known: {PLAN_KIND})"
        raise InputError(told, file=file, field=f"{at}.kind")
    gain = _number(node, "gain", 1.0, file, at)
    least_run_s = _number(node, "least_run_s", 0.0, file, at)
    priority, where = node.get("priority"), f"{at}.priority"
    if not isinstance(priority, dict):
        raise InputError("is no object", file=file, field=where)
    kind = priority.get("kind")
    if not isinstance(kind, str) or kind not in NUMBERS:
        told = f"{kind!r} is unknown (known: {', '.join(NUMBERS)})"
        raise InputError(told, file=file, field=f"{where}.kind")
    numbers = {name: _number(priority, name, -np.inf, file, where) for name in NUMBERS[kind]}
    try:
        make = _order(str(kind), numbers, priority.get("weights"), checkpoint)
        make()
    except InputError as error:
        if error.file is not None:
            raise
        raise InputError(error.message, file=file, field=f"{where}.{error.field}") from error
    return MigrationAdviser(make, gain, least_run_s)


def _order(
    kind: str, numbers: dict[str, float], weights: object, checkpoint: SchedulerCheckpoint
) -> MakesPriority:
    if kind != LEARNED:
        make: MakesPriority = partial(RULES[kind], **numbers)
        return make
    if not isinstance(weights, dict):
        raise InputError("is no object", field="weights")
    if DURATIONS_FOLDER not in checkpoint.spec.get("folders", {}):
        told = f"does not list {DURATIONS_FOLDER}, which the order reads"
        raise InputError(told, file=checkpoint.folder / SPEC_FILE, field="folders")
    folder = str(checkpoint.folder / DURATIONS_FOLDER)
    return partial(from_folder, path=folder, weights=weights)


def _number(node: dict[str, Any], key: str, least: float, file: Path, at: str) -> float:
    value = node.get(key)
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else np.inf
    if not abs(number) <= sys.float_info.max:
        told = f"{shortened(value)} is no finite number"
        raise InputError(told, file=file, field=f"{at}.{key}")
    if number < least:
        raise InputError(f"{number} is below {least}", file=file, field=f"{at}.{key}")
    return float(number)
