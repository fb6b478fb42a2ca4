"""Plans that move jobs as data in a checkpoint, and from it again: that decide, or that advise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from agents.cluster.migrating.adviser import MakesPriority, MigrationAdviser
from agents.cluster.migrating.learned_priority import LearnedPriority, Weights, from_folder
from agents.cluster.migrating.policy import Migrating
from agents.cluster.migrating.priorities import (
    AttainedServiceClasses,
    RemainingService,
    RemainingTime,
)
from envs.cluster.environment.observation import ADVISED
from envs.cluster.environment.views import Adviser
from envs.errors import InputError, require_one_of
from envs.forms import Form, read_form
from models.export.checkpoint import (
    DURATIONS_FOLDER,
    PLAN,
    SPEC_FILE,
    AdviserSpec,
    SchedulerCheckpoint,
)

ADVISER, KIND = "adviser", "migration"
AboveZero = Annotated[float, Field(gt=0.0)]


class _Order(Form, extra="ignore"):
    """An order by rule, with its numbers."""


class _Classes(_Order):
    first: AboveZero


class _Learned(_Order):
    weights: Weights  # type: ignore[valid-type]


class _Adviser(Form, extra="ignore"):
    kind: Literal["migration"]
    gain: Annotated[float, Field(ge=1.0)]
    least_run_s: Annotated[float, Field(ge=0.0)]
    priority: dict[str, Any]


class _Plan(_Adviser):
    least_run_s: AboveZero
    wake_s: AboveZero


ORDERS: dict[str, tuple[Callable[..., Any], type[_Order]]] = {
    AttainedServiceClasses.name: (AttainedServiceClasses, _Classes),
    RemainingTime.name: (RemainingTime, _Order),
    RemainingService.name: (RemainingService, _Order),
    LearnedPriority.name: (LearnedPriority, _Learned),
}


def described(adviser: Adviser | Migrating | None) -> AdviserSpec | None:
    """What a checkpoint says of an adviser or a plan that decides; None of none.

    Raises:
        InputError: it is none that a checkpoint can describe, or the folder that it reads holds no
            posterior.
    """
    if adviser is None:
        return None
    order: Any = adviser
    if isinstance(adviser, MigrationAdviser):
        order = adviser.priority()
    elif isinstance(adviser, Migrating):
        order = adviser.priority
    if order is adviser or getattr(order, "name", None) not in ORDERS:
        message = f"{type(order).__name__} cannot go into a checkpoint (nothing reads its spec)"
        raise InputError(message, field="adviser")
    numbers = (_Plan if isinstance(adviser, Migrating) else _Adviser).model_fields
    told = {name: getattr(adviser, name) for name in numbers if hasattr(adviser, name)}
    shown = {name: getattr(order, name) for name in ORDERS[order.name][1].model_fields}
    document = {"kind": KIND, **told, "priority": {"kind": order.name, **shown}}
    learned = isinstance(order, LearnedPriority)
    return AdviserSpec(document, {DURATIONS_FOLDER: order.folder} if learned else {})


def rebuilt(checkpoint: SchedulerCheckpoint) -> MigrationAdviser | None:
    """The adviser of a checkpoint; None where its policy is shown nobody's action.

    Raises:
        InputError: the spec does not describe one of those known here, or describes one although
            the policy takes no advice, or the folder that it reads is missing or damaged.
    """
    advised = any(item.name == ADVISED for item in checkpoint.layout)
    if advised:
        return _adviser(checkpoint, _Adviser, ADVISER)
    if checkpoint.spec.get(ADVISER) is not None:
        told = "goes with a policy that takes no advice"
        raise InputError(told, file=checkpoint.folder / SPEC_FILE, field=ADVISER)
    return None


def plan_of(checkpoint: SchedulerCheckpoint) -> tuple[MigrationAdviser, Migrating]:
    """The plan that decides, for each of several schedulers and for a single one.

    Raises:
        InputError: as `rebuilt`.
    """
    adviser = _adviser(checkpoint, _Plan, PLAN)
    wake_s = checkpoint.spec[PLAN]["wake_s"]
    return adviser, Migrating(adviser.priority(), adviser.gain, adviser.least_run_s, wake_s)


def _adviser(checkpoint: SchedulerCheckpoint, form: type[_Adviser], at: str) -> MigrationAdviser:
    """The one that a node of the spec describes."""
    file, where = checkpoint.folder / SPEC_FILE, f"{at}.priority"
    told = read_form(form, checkpoint.spec.get(at), file, inside=at)
    kind = told.priority.get("kind")
    require_one_of(kind, tuple(ORDERS), file=file, field=f"{where}.kind")
    make, numbers = ORDERS[str(kind)]
    order = read_form(numbers, told.priority, file, inside=where).model_dump()
    priority: MakesPriority = partial(make, **order)
    if make is LearnedPriority:
        if DURATIONS_FOLDER not in checkpoint.spec.get("folders", {}):
            message = f"does not list {DURATIONS_FOLDER}, which the order reads"
            raise InputError(message, file=file, field="folders")
        folder = str(checkpoint.folder / DURATIONS_FOLDER)
        priority = partial(from_folder, folder, order["weights"])
    priority()
    return MigrationAdviser(priority, told.gain, told.least_run_s)
