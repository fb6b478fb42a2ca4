"""How the plan of a file is simulated: through its own bandwidth, where it has any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envs.errors import InputError
from envs.step.allocated import Allocated
from envs.step.communication import Communication
from envs.step.plans import BandwidthAllocation
from experiments.step.problem import communication_of

ALLOCATED = "allocated"
_KEY = "communication"


def plan_communication(
    node: Mapping[str, Any], allocation: BandwidthAllocation | None, overrides: Sequence[str]
) -> Communication:
    """The communication model of config node `node` for a plan with `allocation`.

    A plan without bandwidth is simulated as the node says. A plan with bandwidth is simulated
    through pipes of its own rates, in place of the config's default model or of the rates that
    `communication=allocated` would give.

    Args:
        node: the config's `communication`.
        allocation: the plan's bandwidth.
        overrides: the command line in Hydra's terms.

    Raises:
        InputError: the command line asks for a model that knows no allocation, for a plan that has
            one; or `node` is no communication model.
    """
    model = communication_of(node)
    if allocation is None:
        return model
    asked = any(override.lstrip("+~").startswith(_KEY) for override in overrides)
    if asked and not isinstance(model, Allocated):
        raise InputError(
            f"config key '{_KEY}': the plan allocates bandwidth, which {model.name!r} does not "
            f"know; leave the key out, or the 'bandwidth' out of the plan file"
        )
    return Allocated(ALLOCATED, allocation)
