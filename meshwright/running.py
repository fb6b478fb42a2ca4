"""What stands behind a name: an app, an environment, an exported policy."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.errors import InputError, require_one_of
from envs.files import read_json
from experiments.config.command_words import CONFIG_DIR, TRUST, given_keys
from experiments.config.verbs import COMMANDS

if TYPE_CHECKING:
    import gymnasium
    from pettingzoo import ParallelEnv

    from agents.decision import Decider


def run(verb: str, *words: str) -> dict[str, Any]:
    """Run an app as `meshwright <verb> <words>` does, in this process; what it found.

        found = mw.run("main", "env=cluster_mixed", "training.budget_s=60")
        scheduler = mw.load(found["checkpoint"])

    Args:
        verb: train, export, main, evaluate, ...: `meshwright --help` lists them.
        words: `group=option` and `key=value`, as on the command line.

    Returns:
        What the run wrote to `result.json`; `run_folder` is where everything else lies, which is
        `outputs/<verb>/<date-time>` unless `hydra.run.dir=<folder>` is among the words.

    Raises:
        InputError: an unknown verb, or what the command would tell in one line.
        KeyboardInterrupt: the run was interrupted.
    """
    from experiments.command_line import run_verb
    from experiments.run.interrupts import Interrupts, last_word

    require_one_of(verb, COMMANDS, field="verb")
    for word in words:
        if word.startswith("-") and word.partition("=")[0] not in (*CONFIG_DIR, TRUST):
            raise InputError(f"{word!r} is for the command alone", field="words")
    given = given_keys(words)
    folder = given.get("hydra.run.dir") or given.get("resume")
    if folder is None:
        folder = f"outputs/{verb}/{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
        words = (*words, f"hydra.run.dir={folder}")
    with Interrupts(last=False):
        try:
            run_verb(verb, words)
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(last_word()) from interrupt
    document: dict[str, Any] = read_json(Path(folder.strip("'\"")) / "result.json")
    return document


def make(
    id: str,  # noqa: A002
    **arguments: Any,
) -> gymnasium.Env[Any, Any] | ParallelEnv[Any, Any, Any]:
    """The environment called `id`, Gymnasium's or PettingZoo's.

    Args:
        id: `"Cluster-v0"` or `"meshwright/Cluster-v0"`.
        arguments: what the docstring of the environment lists, and what `gymnasium.make` takes.

    Raises:
        gymnasium.error.Error: there is no such environment.
    """
    import gymnasium

    from envs import PARALLEL, make_parallel

    name = id if "/" in id else f"meshwright/{id}"
    return (
        make_parallel(PARALLEL[name], **arguments)
        if name in PARALLEL
        else gymnasium.make(name, **arguments)
    )


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
    from agents.exported import load_decider

    return load_decider(checkpoint, **limits)
