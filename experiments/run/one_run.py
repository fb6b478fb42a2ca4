"""One run of an app: what its task is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.run.heartbeat import RunConsole
from experiments.run.provenance import Provenance

ENVIRONMENT_FILE, RESULT_FILE = "environment.json", "result.json"


@dataclass(frozen=True)
class Run:
    """One run of an app: where it writes, what it prints on, and its provenance.

    `choices` maps each config group to the option that was chosen; `overrides` is the command
    line in Hydra's terms.
    """

    folder: Path
    console: RunConsole
    provenance: Provenance
    choices: Mapping[str, str]
    overrides: Sequence[str]

    def begin(self, stage: str) -> None:
        """What is done from now on, as the console says where nothing else is said for long."""
        self.console.doing = stage

    def choice(self, group: str, node: Mapping[str, object]) -> str:
        """The option chosen for `group`; the `_target_` of its `node` where there is no option."""
        return self.choices.get(group) or str(node.get("_target_"))


@dataclass(frozen=True)
class Result:
    """What an app found: `values` go to `result.json`, with `provenance` over the inputs.

    `shown` are the keys printed at the end of a run without `json=true`; None: every scalar.
    `warnings` are printed on standard error, one a line, and stand in `result.json`.
    """

    values: Mapping[str, object]
    provenance: Provenance
    shown: Sequence[str] | None = None
    warnings: Sequence[str] = ()
