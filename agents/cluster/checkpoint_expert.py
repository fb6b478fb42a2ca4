"""Plans that move jobs as data in a checkpoint, and from it again.

A plan decides by itself, or is the expert policy whose action a network is shown; the spec calls
that `adviser`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import Field

from agents.cluster.migrating.expert import MakesPriority, MigrationExpert
from agents.cluster.migrating.learned_priority import LearnedPriority, Weights, from_folder
from agents.cluster.migrating.policy import Migrating
from agents.cluster.migrating.priorities import (
    AttainedServiceClasses,
    Priority,
    RemainingService,
    RemainingTime,
)
from agents.cluster.shipped import scheduler_folder
from envs.cluster.environment.observation import ADVISED, ExpertPolicy
from envs.errors import InputError, require_one_of
from envs.forms import Form, read_form
from models.export.checkpoint import (
    DURATIONS_FOLDER,
    PLAN,
    SPEC_FILE,
    ExpertSpec,
    SchedulerCheckpoint,
    load_checkpoint,
)

EXPERT, KIND = "adviser", "migration"
AboveZero = Annotated[float, Field(gt=0.0)]
Part = TypeVar("Part", bound="_Expert")


class _Expert(Form, extra="ignore"):
    kind: Literal["migration"]
    gain: Annotated[float, Field(ge=1.0)]
    least_run_s: Annotated[float, Field(ge=0.0)]
    priority: dict[str, Any]


class _Plan(_Expert):
    least_run_s: AboveZero
    wake_s: AboveZero


class _Order(Form, extra="ignore"):
    """An order by rule, with its numbers."""


class _Classes(_Order):
    first: AboveZero


class _Learned(_Order):
    weights: Weights  # type: ignore[valid-type]


ORDERS: dict[str, tuple[Callable[..., Any], type[_Order]]] = {
    AttainedServiceClasses.name: (AttainedServiceClasses, _Classes),
    RemainingTime.name: (RemainingTime, _Order),
    RemainingService.name: (RemainingService, _Order),
    LearnedPriority.name: (LearnedPriority, _Learned),
}


def described(expert: ExpertPolicy | Migrating | None) -> ExpertSpec | None:
    """What a checkpoint says of an expert policy or a plan that decides; None of none.

    Raises:
        InputError: it is none that a checkpoint can describe, or the folder that it reads holds no
            posterior.
    """
    if expert is None:
        return None
    names, order = ["gain", "least_run_s"], cast(Any, expert)
    if isinstance(expert, MigrationExpert):
        order = expert.priority()
    elif isinstance(expert, Migrating):
        names, order = [*names, "wake_s"], expert.priority
    if order is expert or getattr(order, "name", None) not in ORDERS:
        message = f"{type(order).__name__} cannot go into a checkpoint (nothing reads its spec)"
        raise InputError(message, field=EXPERT)
    numbers = {name: getattr(order, name) for name in ORDERS[order.name][1].model_fields}
    document = {
        "kind": KIND,
        **{name: getattr(expert, name) for name in names},
        "priority": {"kind": order.name, **numbers},
    }
    learned = isinstance(order, LearnedPriority)
    return ExpertSpec(document, {DURATIONS_FOLDER: order.folder} if learned else {})


def rebuilt(checkpoint: SchedulerCheckpoint) -> MigrationExpert | None:
    """The expert policy of a checkpoint; None where its network is shown no action.

    Raises:
        InputError: the spec does not describe one of those known here, or describes one although
            the network is shown none, or the folder that it reads is missing or damaged.
    """
    if any(item.name == ADVISED for item in checkpoint.layout):
        return _expert(checkpoint, _Expert, EXPERT)[0]
    if checkpoint.spec.get(EXPERT) is not None:
        message = "goes with a policy that is shown no action"
        raise InputError(message, file=checkpoint.folder / SPEC_FILE, field=EXPERT)
    return None


def plan_of(checkpoint: SchedulerCheckpoint) -> tuple[MigrationExpert, Migrating]:
    """The plan that decides, for each of several schedulers and for a single one.

    Raises:
        InputError: as `rebuilt`.
    """
    expert, given = _expert(checkpoint, _Plan, PLAN)
    return expert, Migrating(expert.priority(), expert.gain, expert.least_run_s, given.wake_s)


def order_of(checkpoint: str = "unknown_durations") -> Priority:
    """The order of a plan that was exported, to be made part of another.

    Args:
        checkpoint: the folder, or the name of a shipped scheduler.

    Raises:
        InputError: the folder holds no plan.
    """
    return plan_of(load_checkpoint(scheduler_folder(checkpoint)))[1].priority


def _expert(
    checkpoint: SchedulerCheckpoint, form: type[Part], at: str
) -> tuple[MigrationExpert, Part]:
    """The one that a node of the spec describes, and the node."""
    file, where = checkpoint.folder / SPEC_FILE, f"{at}.priority"
    given = read_form(form, checkpoint.spec.get(at), file, inside=at)
    kind = given.priority.get("kind")
    require_one_of(kind, tuple(ORDERS), file=file, field=f"{where}.kind")
    make, numbers = ORDERS[str(kind)]
    order = read_form(numbers, given.priority, file, inside=where).model_dump()
    priority: MakesPriority = partial(make, **order)
    if make is LearnedPriority:
        if DURATIONS_FOLDER not in checkpoint.spec.get("folders", {}):
            message = f"does not list {DURATIONS_FOLDER}, which the order reads"
            raise InputError(message, file=file, field="folders")
        priority = partial(from_folder, str(checkpoint.folder / DURATIONS_FOLDER), **order)
    priority()  # reads what it needs
    return MigrationExpert(priority, given.gain, given.least_run_s), given
