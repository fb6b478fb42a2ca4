"""Exported schedulers and placement policies, asked on live states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agents.decision import Decider
from agents.exported import load_decider


def load(checkpoint: str | Path, **limits: Any) -> Decider:
    """What an exported policy decides by: `decide(state)` answers with actions and their scores.

    It needs neither torch, PyTorch Geometric nor Ray, and nothing in the folder is unpickled.
    `schema` is the JSON schema of the states it takes, `answer_schema` that of its answers.

    Args:
        checkpoint: the folder of an exported policy, or the name of one that is shipped, such as
            "unknown_durations".
        limits: `docs/serve.md` lists them.

    Raises:
        InputError: there is no such folder, or a file in it is missing or damaged.
    """
    return load_decider(checkpoint, **limits)
