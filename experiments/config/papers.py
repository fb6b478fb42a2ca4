"""The papers: folders of `experiments/papers`, and the names and commands that each adds.

A folder's `paper.yaml` is read, none of its modules is imported for it. Modules are named from the
folder, those of a floor by their whole name. To delete a folder takes its rows away, and nothing
else.

    commands:              # `price` is `plan env=pricing`: verb, module:dataclass:function, word
      price: [plan, "command:PriceConfig:price", env=pricing]
    jobs: {...}            # the same, by that word of the verb alone
    groups: {agent: {switchml: "planners:SwitchMl"}}
    gymnasium: {Allocation-v0: "env:AllocationEnv"}
    pettingzoo: {Pricing-v0: "env:PricingEnv"}
    help: {agent: "who decides"}        # what a new group is about, for `--help`

Its folder `conf`, where it has one, adds configs as the shipped ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from experiments.config.signatures import OURS, PREFIX

FOLDER = Path(__file__).parents[1] / "papers"
ROOM = __name__.rpartition(".config.")[0].removeprefix(PREFIX) + ".papers"


@dataclass(frozen=True)
class Paper:
    """What one folder adds."""

    folder: Path
    commands: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    jobs: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gymnasium: Mapping[str, str] = field(default_factory=dict)
    pettingzoo: Mapping[str, str] = field(default_factory=dict)
    help: Mapping[str, str] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        """The folder of its configs."""
        return self.folder / "conf"

    def named(self, row: str) -> str:
        """What `module:name` of the folder, or of a floor, is called in a checkout."""
        of_floor = row.startswith(tuple(f"{floor}." for floor in OURS))
        return row if of_floor else f"{ROOM}.{self.folder.name}.{row}"

    def row(self, row: str) -> str:
        """A row of a group, as those of the registry: `partial` before it, arguments behind."""
        words = row.split(" ")
        at = 1 if words[0] == "partial" else 0
        named = [word.rpartition("=") for word in words[at:]]
        return " ".join([*words[:at], *(f"{x}{y}{self.named(z)}" for x, y, z in named)])


def _papers() -> Iterator[Paper]:
    for file in sorted(FOLDER.glob("*/paper.yaml")):
        yield Paper(file.parent, **yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader))


PAPERS = tuple(_papers())


def register_environments() -> None:
    """Add the environments of papers to Gymnasium's registry and to `envs.PARALLEL`."""
    import gymnasium

    from envs import PARALLEL

    for paper in PAPERS:
        for name, row in paper.gymnasium.items():
            if f"meshwright/{name}" not in gymnasium.registry:
                gymnasium.register(f"meshwright/{name}", f"{PREFIX}{paper.named(row)}")
        for name, row in paper.pettingzoo.items():
            PARALLEL[f"meshwright/{name}"] = f"{PREFIX}{paper.named(row)}"
