"""Episodes of environments of one agent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym


def play(env: gym.Env[Any, Any], actions: Iterable[Any], **options: Any) -> list[dict[str, Any]]:
    """Infos of one episode; the last has the sum of rewards as `return`, and whether it `ended`."""
    _, first = env.reset(seed=0, options=options)
    infos, total, ended = [first], 0.0, False
    for action in actions:
        _, reward, ended, truncated, info = env.step(action)
        assert not truncated
        total += float(reward)
        infos.append(info)
    infos[-1] |= {"return": total, "ended": ended}
    return infos
