"""Where the metrics of a training go: an option of `conf/tracking`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.config.targets import build_as

if TYPE_CHECKING:
    from agents.rllib.metrics import Tracking


def tracking_of(node: Mapping[str, object]) -> Tracking:
    """The tracking that a config describes.

    Raises:
        InputError: it describes none.
    """
    from agents.rllib.metrics import Tracking

    return build_as(Tracking, node, "tracking", "tracking of metrics")
