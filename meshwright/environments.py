"""Environments by name."""

from __future__ import annotations

from typing import Any

import gymnasium

PREFIX = "meshwright/"


def make(id: str, **arguments: Any) -> gymnasium.Env[Any, Any]:  # noqa: A002
    """The environment called `id`, `gymnasium.make` with everything registered.

    Args:
        id: `"Cluster-v0"` or `"meshwright/Cluster-v0"`.
        arguments: what the docstring of the environment lists, and what `gymnasium.make` takes.

    Raises:
        gymnasium.error.Error: there is no such environment.
    """
    import envs  # noqa: F401  registers them

    return gymnasium.make(id if "/" in id else f"{PREFIX}{id}", **arguments)
