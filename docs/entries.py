"""One entry per option of `conf/agent` and `conf/env`, and its Markdown page.

An option names a class by `_target_`, whose docstring mkdocstrings renders. The sections `Knows`,
`Guarantees` and `Source`, of that docstring or of what the YAML hands to it, stand in the tables.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from agents.base import (
    BandwidthPlanner,
    HybridPlanner,
    JointPlanner,
    PartitionPlanner,
    Planner,
    SharedPlanner,
    SynchronisationPlanner,
)
from hydra.utils import get_object

CONF = Path(__file__).resolve().parents[1] / "conf"
Kind = Literal["environment", "planner", "learner", "scheduler"]
STEP, PLANES = "graph=gpt2 topology=mixed_v100_p100", "graph=gpt2 topology=planes_4x1"
PLANNERS = {  # how the commands that a user copies ask each kind of planner
    Planner: STEP,
    PartitionPlanner: "",
    BandwidthPlanner: f"problem=bandwidth {PLANES}",
    JointPlanner: f"problem=joint {PLANES}",
    SharedPlanner: f"problem=shared 'problem.plans=[<plan file>]' {PLANES}",
    HybridPlanner: "problem=pipeline graph=gpt2 topology=a100_4x8",
    SynchronisationPlanner: "",
}
KNOWLEDGE = {  # the classes of `agents.cluster.policy.Knowledge`
    "nothing": "nothing of a job that has not finished but its gang, its owner and its progress",
    "predictions": "predictions: what jobs that have finished tell of the others",
    "durations": "durations: how long every job takes",
}
ABOUT: dict[Kind, str] = {
    "environment": "What is decided, step by step. `env=` names one; from Python `mw.make(id)` "
    "makes it. The docstring of the class is its specification, and the toys have proved optima.",
    "planner": "Who decides a whole training step at once. `agent=` names one. Whatever a planner "
    "says of itself, its plan is simulated again and stands beside a lower bound. The pictures "
    "show the plan for one small step of two micro-batches, on two V100 and two P100, or on four "
    "servers where bandwidth is decided, found in four seconds or less; those of synchronisation "
    "show 100 MB summed by the command of their page.",
    "learner": "How policies are trained, with `meshwright train`. Each is PPO with the numbers "
    "that suit the steps of its environment.",
    "scheduler": "Who decides which jobs of a cluster run when, and where. `env=cluster agent=` "
    "names one. Compare within one class of information. The pictures show the same 24 jobs on two "
    "nodes of four V100 and two of four P100, where a stop costs 20 s.",
}
CAPTIONS = {
    "environment": "What the environment draws of itself after a few random actions",
    "planner": "The plan for the example",
    "learner": "A training run; its command stands in the text fields of the file",
    "scheduler": "Who held which GPU when, and the jobs that waited",
}
DIRECTIVE = """::: {}
    options: {{show_root_heading: false, show_root_toc_entry: false, show_bases: false,
      members: false, heading_level: 3}}"""


@dataclass(frozen=True)
class Entry:
    """What is said of one option."""

    kind: Kind
    name: str  # of the option
    summary: str  # the first comment of its YAML
    command: str
    text: str  # its YAML
    target: str
    parts: Mapping[str, str]  # what the YAML hands over by `_target_`, by its key

    @property
    def made(self) -> type:
        """The class that `_target_` names, that of a method, or what a function returns."""
        return class_of(self.target)

    def fact(self, name: str) -> str:
        """`Knows`, `Guarantees` or `Source`, of the first that tells it."""
        told = [section(get_object(self.target), name), section(self.made, name)]
        return next(filter(None, [*told, *(section(class_of(x), name) for x in self.told)]), "")

    @property
    def told(self) -> list[str]:
        """The parts that say where they are from."""
        return [part for part in self.parts.values() if section(class_of(part), "Source")]

    @property
    def knows(self) -> str:
        """What it may look at: the class of information of a scheduler; else the section."""
        classes = [self.made, *map(class_of, self.parts.values())]
        declared = [getattr(one, "knows", None) for one in classes]
        found = next((name for name in declared if isinstance(name, str)), None)
        if found is not None:
            return KNOWLEDGE[found]
        if self.kind == "environment":
            shown = re.search(r"known_durations: *(\w+)", self.text)
            how = {"true": "", "false": "do not "}[shown[1]] if shown else None
            jobs = "" if how is None else f"; jobs {how}say how long they take"
            return f"what its observation holds, below{jobs}"
        return self.fact("Knows") or "".join(section(kind, "Knows") for kind in self.answers[:1])

    @property
    def answers(self) -> list[type]:
        """The kinds of planner that it is."""
        return [kind for kind in PLANNERS if issubclass(self.made, kind)]

    @property
    def id(self) -> str:
        """The id of an environment; with `meshwright/` where Gymnasium knows it."""
        found = re.search(r"(?:meshwright/)?\w+-v\d+", self.summary)
        return found[0] if found else ""

    @property
    def picture(self) -> str:
        """Its path in the site; those of training runs lie in `docs` itself."""
        if self.kind == "learner" or "???" in self.text:
            return f"pictures/{self.name}.png"
        return f"catalogue/pictures/{self.kind}_{self.name}.png"

    @property
    def path(self) -> str:
        return f"catalogue/{self.kind}s/{self.name}.md"


def section(named: object, name: str) -> str:
    """A section of a docstring, with a heading or in Google's form; empty: there is none."""
    text = f"{inspect.getdoc(named) or ''}\n"
    found = re.search(rf"^{name}:\n((?: .*\n|\n)+)|^## {name}\n((?:(?!## ).*\n)+)", text, re.M)
    return " ".join((found[1] or found[2]).split()) if found else ""


@cache
def class_of(target: str) -> type:
    """The class of that dotted name, of a method, or that a function returns."""
    named: Any = get_object(target)
    owner = named if inspect.isclass(named) else getattr(named, "__self__", None)
    owner = owner or typing.get_type_hints(named).get("return", object)
    return owner if inspect.isclass(owner) else object


@cache
def entries() -> tuple[Entry, ...]:
    """All of `conf/env` that have steps and of `conf/agent`, by kind and name."""
    found = [_entry(path) for group in ("env", "agent") for path in (CONF / group).glob("*.yaml")]
    kinds = typing.get_args(Kind)
    known = [e for e in found if e.kind != "environment" or hasattr(e.made, "step")]
    return tuple(sorted(known, key=lambda entry: (kinds.index(entry.kind), entry.name)))


def _entry(path: Path) -> Entry:
    text, node = read_option(path)
    target, name = str(node["_target_"]), path.stem
    kind: Kind = "learner" if "agents.rllib." in target else "scheduler"
    if path.parent.name == "env":
        kind = "environment"
    elif issubclass(class_of(target), tuple(PLANNERS)):
        kind = "planner"
    comments = [line[1:].strip() for line in re.match(r"(?:#.*\n)*", text)[0].splitlines()]  # type: ignore[index]
    commands = [line for line in comments if line.startswith("meshwright ")]
    summary = " ".join(line for line in comments if line not in commands)
    missing = "".join(f" agent.{key}=<folder>" for key, value in _leaves(node) if value == "???")
    parts = {key[:-9]: value for key, value in _leaves(node) if key.endswith("._target_")}
    found = Entry(kind, name, summary, "", text, target, parts)
    asked = next((PLANNERS[one] for one in found.answers if PLANNERS[one]), "")
    command = f"meshwright plan agent={name}{missing} {asked} budget_s=10"
    if kind == "environment":
        module, _, made = target.removesuffix(".of_problem").rpartition(".")
        command = f'python -c "from {module} import {made}; print({made}().reset(seed=0))"'
        if "/" in found.id:  # PettingZoo has no registry
            make = f"mw.make('{found.id}').reset(seed=0)"
            command = f'python -c "import meshwright as mw; print({make})"'
    elif kind == "scheduler":
        jobs = "trace.format=synthetic trace.jobs=1000 cluster.nodes=12"
        if node.get("schedulers", 1) > 1:  # each has racks, which hold its jobs
            jobs += " cluster.nodes_per_rack=2 trace.max_gpus=32"
        command = f"meshwright evaluate env=cluster agent={name}{missing} {jobs}"
    elif SynchronisationPlanner in found.answers:
        command = f"meshwright synchronise agent={name}{missing} topology=h100_2x8"
    return Entry(kind, name, summary, (commands or [command])[0], text, target, parts)


def read_option(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of an option, and what it holds with the options that its defaults list names."""
    text = path.read_text(encoding="utf-8")
    node: dict[str, Any] = yaml.safe_load(text)
    for default in node.pop("defaults", []):
        for key, option in default.items() if isinstance(default, Mapping) else ():
            group, _, own = str(key).removeprefix("/").partition("@")
            node[own] = None if option is None else read_option(CONF / group / f"{option}.yaml")[1]
    return text, node


def _leaves(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Values by their dotted keys."""
    for key, value in node.items():
        inner = _leaves(value) if isinstance(value, Mapping) else [("", value)]
        yield from ((f"{key}.{below}".rstrip("."), leaf) for below, leaf in inner)


def page(entry: Entry) -> str:
    """What it does, what it knows, what it guarantees, where it comes from, how to run it."""
    group = "env" if entry.kind == "environment" else "agent"
    facts = {
        "Id": f"`{entry.id}`" if group == "env" else "",
        "Knows": entry.knows,
        "Guarantees": entry.fact("Guarantees"),
        "Source": entry.fact("Source"),
        "Code": f"`{entry.target}`",
        "Config": f"`conf/{group}/{entry.name}.yaml`",
    }
    target = entry.target
    if group == "env":
        target = f"{entry.made.__module__}.{entry.made.__qualname__}"
    others = {key: part for key, part in entry.parts.items() if part not in entry.told}
    first = {key: (inspect.getdoc(class_of(part)) or "") for key, part in others.items()}
    objects = [(f"`{k}`", f"`{part}`", first[k].partition("\n\n")[0]) for k, part in others.items()]
    return "\n\n".join(
        [
            f"# {entry.name}", entry.summary, f"![{CAPTIONS[entry.kind]}](../../{entry.picture})",
            _table("", "", rows=[(f"**{key}**", text) for key, text in facts.items() if text]),
            f"## Run it\n\n```bash\n{entry.command}\n```",
            f"## How it works\n\n{DIRECTIVE.format(target)}",
            *(f"### {part.rpartition('.')[2]}\n\n{DIRECTIVE.format(part)}" for part in entry.told),
            _table("key", "object", "what", rows=objects) if objects else "",
            f"## Settings\n\n```yaml\n{entry.text.rstrip()}\n```\n",
        ]
    )  # fmt: skip


def index(kind: Kind) -> str:
    """The page of a kind, with a table of its entries."""
    mine = [entry for entry in entries() if entry.kind == kind]
    columns, rows = ("name", "id", "what"), []
    for e in mine:
        short = re.split(r"[:.;,](?=\s|$)| of a job", e.knows)[0]
        last = (e.summary, short, e.fact("Source"))
        rows.append((f"[{e.name}]({e.name}.md)", *((f"`{e.id}`", e.summary) if e.id else last)))
    if kind != "environment":
        columns = ("name", "what", "knows", "source")  # type: ignore[assignment]
    return f"# {kind.title()}s\n\n{ABOUT[kind]}\n\n{_table(*columns, rows=rows)}"


def _table(*columns: str, rows: list[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
