"""One entry per option of `conf/agent` and `conf/env`: what the code and its YAML say of it.

An option names a class by `_target_`. Its docstring tells how it works; the sections `Knows:`,
`Guarantees:` and `Source:` of that docstring, or of what the YAML hands to it, are the entry's
facts. Environments have them as headings.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml
from hydra.utils import get_object

from agents.step.problems import (
    BandwidthPlanning,
    JointPlanning,
    SharedPlanning,
    StepPlanning,
)
from envs.hybrid.problem import HybridProblem
from envs.synchronisation.problem import SynchronisationProblem
from experiments.run.declared import CONFIG_MODULE

Kind = Literal["environment", "planner", "learner", "scheduler"]
KINDS: tuple[Kind, ...] = typing.get_args(Kind)
FACTS = ("Knows", "Guarantees", "Source")
ASKED = {  # how the commands that a user copies ask for each kind of problem
    StepPlanning: "graph=gpt2 topology=mixed_v100_p100",
    BandwidthPlanning: "problem=bandwidth graph=gpt2 topology=planes_4x1",
    JointPlanning: "problem=joint graph=gpt2 topology=planes_4x1",
    HybridProblem: "problem=pipeline graph=gpt2 topology=a100_4x8",
    SharedPlanning: "problem=shared 'problem.plans=[<plan file>]' graph=gpt2 topology=planes_4x1",
}
KNOWLEDGE = {  # the classes of `agents.solver.Knowledge`
    "nothing": "nothing of a job that has not finished but its gang, its owner and its progress",
    "predictions": "predictions: what jobs that have finished tell of the others",
    "durations": "durations: how long every job takes",
}
OBSERVED = {  # what an environment shows of jobs, by `known_durations`
    "": "what its observation holds, below",
    "true": "what its observation holds, below; jobs say how long they take",
    "false": "what its observation holds, below; jobs do not say how long they take",
}
_ID = re.compile(r"(?:meshwright/)?\w+-v\d+")
_HEADING = re.compile(r"^(?:#+ *)?(\w[\w ]*?):?$")


@dataclass(frozen=True)
class Part:
    """An object that the YAML hands to another: the key, its dotted name, its docstring."""

    key: str
    target: str
    doc: Docstring


@dataclass(frozen=True)
class Docstring:
    """A docstring without its sections about arguments, and the facts that stand in it."""

    first: str  # its first line
    body: str
    facts: Mapping[str, str]

    @classmethod
    def of(cls, named: object) -> Docstring:
        """Of a class, or of a function with the class that it returns."""
        lines = (inspect.getdoc(named) or "").splitlines()
        facts: dict[str, str] = {}
        body: list[str] = []
        at = 0
        while at < len(lines):
            heading = _HEADING.match(lines[at])
            name = heading[1] if heading else ""
            google = lines[at].endswith(":") and at + 1 < len(lines) and lines[at + 1][:4] == "    "
            if name in FACTS and not google and lines[at].startswith("#"):
                end = _next(lines, at + 1, lambda line: line.startswith("## "))
                facts[name] = _joined(lines[at + 1 : end])
            elif google and name in {*FACTS, "Args", "Raises", "Attributes"}:
                end = _next(lines, at + 1, lambda line: bool(line) and line[0] != " ")
                if name in FACTS:
                    facts[name] = _joined(lines[at + 1 : end])
            else:
                body.append(lines[at])
                end = at + 1
            at = end
        text = "\n".join(body).strip()
        return cls(text.split("\n\n")[0].replace("\n", " "), text, facts)


@dataclass(frozen=True)
class Entry:
    """What is said of one option."""

    kind: Kind
    name: str  # of the option
    summary: str  # the first comment of its YAML
    text: str  # its YAML
    target: str
    doc: Docstring
    parts: tuple[Part, ...]
    command: str
    made: object  # the class or function that `_target_` names

    def fact(self, name: str) -> str:
        """`Knows`, `Guarantees` or `Source`: of the class, or of the first part that tells it."""
        told = [self.doc.facts.get(name), *(part.doc.facts.get(name) for part in self.parts)]
        return next((text for text in told if text), "")

    @property
    def knows(self) -> str:
        """What it may look at: the class of information of a scheduler; else the section."""
        classes = [self.made, *(_named(part.target) for part in self.parts)]
        declared = [getattr(_class_of(named), "knows", None) for named in classes]
        found = next((name for name in declared if isinstance(name, str)), None)
        if found is not None:
            return KNOWLEDGE[found]
        if self.kind == "environment":
            return OBSERVED[yaml_value(self.text, "known_durations")]
        told = self.fact("Knows")
        if told or self.kind != "planner":
            return told
        return " ".join(Docstring.of(kind).facts.get("Knows", "") for kind in self.answers[:1])

    @property
    def answers(self) -> tuple[type, ...]:
        """The kinds of problem that it solves."""
        return getattr(_class_of(self.made), "solves", ())


@cache
def entries() -> tuple[Entry, ...]:
    """The environments of `conf/env`, all of `conf/agent`, in the order of `KINDS` and by name."""
    found = [_entry("env", name) for name in _options("env")]
    found = [entry for entry in found if hasattr(_class_of(entry.made), "step")]
    found += [_entry("agent", name) for name in _options("agent")]
    return tuple(sorted(found, key=lambda entry: (KINDS.index(entry.kind), entry.name)))


def gymnasium_id(entry: Entry) -> str:
    """The id that an environment's YAML names; with `meshwright/` where Gymnasium knows it."""
    found = _ID.search(entry.summary)
    return found[0] if found else ""


def yaml_value(text: str, key: str) -> str:
    """The value of a key that stands anywhere in a YAML, as it is written; empty: nowhere."""
    found = re.search(rf"^ *{key}: *(\S+)", text, re.MULTILINE)
    return found[1] if found else ""


def _options(group: str) -> Iterator[str]:
    for path in (files(CONFIG_MODULE) / group).iterdir():
        if path.name.endswith(".yaml"):
            yield path.name.removesuffix(".yaml")


def read_option(group: str, name: str) -> tuple[str, dict[str, Any]]:
    """The text of an option, and what it holds with the options that its defaults list names."""
    text = (files(CONFIG_MODULE) / group / f"{name}.yaml").read_text(encoding="utf-8")
    node: dict[str, Any] = yaml.safe_load(text)
    for default in node.pop("defaults", []):
        for key, option in default.items() if isinstance(default, Mapping) else ():
            source, _, own = str(key).partition("@")
            node[own] = read_option(source.removeprefix("/"), str(option))[1]
    return text, node


def _entry(group: str, name: str) -> Entry:
    text, node = read_option(group, name)
    target = str(node["_target_"])
    made = _named(target)
    if group == "env":
        kind: Kind = "environment"
    elif hasattr(_class_of(made), "solves"):
        kind = "planner"
    elif "agents.rllib." in target:
        kind = "learner"
    else:
        kind = "scheduler"
    comments = [line[1:].strip() for line in _head(text)]
    commands = [line for line in comments if line.startswith("meshwright ")]
    parts = tuple(_parts(node))
    doc = Docstring.of(_class_of(made) if kind == "environment" else made)
    summary = " ".join(line for line in comments if line not in commands)
    found = Entry(kind, name, summary, text, target, doc, parts, "", made)
    command = commands[0] if commands else _command(found, node)
    return Entry(kind, name, summary, text, target, doc, parts, command, made)


def _head(text: str) -> Iterator[str]:
    """The comment with which a YAML begins."""
    for line in text.splitlines():
        if not line.startswith("#"):
            return
        yield line


def _parts(node: Mapping[str, Any]) -> Iterator[Part]:
    """What is handed over by `_target_`, and what is in turn handed to that."""
    for key, value in node.items():
        if isinstance(value, Mapping) and "_target_" in value:
            target = str(value["_target_"])
            yield Part(key, target, Docstring.of(_class_of(_named(target))))
            for part in _parts(value):
                yield Part(f"{key}.{part.key}", part.target, part.doc)


def _command(entry: Entry, node: Mapping[str, Any]) -> str:
    """The command that asks a planner or a scheduler; keys without a value are left to the user."""
    missing = [f"agent.{key}" for key, value in node.items() if value == "???"]
    missing += [
        f"agent.{key}.{inner}"
        for key, value in node.items()
        if isinstance(value, Mapping)
        for inner, held in value.items()
        if held == "???"
    ]
    given = "".join(f" {key}=<folder>" for key in missing)
    if entry.kind == "environment":
        name = gymnasium_id(entry)
        if "/" in name:
            return f"python -c \"import meshwright as mw; print(mw.make('{name}').reset(seed=0))\""
        target = entry.target.removesuffix(".of_problem")
        module, _, made = target.rpartition(".")  # PettingZoo has no registry
        return f'python -c "from {module} import {made}; print({made}().reset(seed=0))"'
    if entry.kind == "scheduler":
        jobs = "trace.format=synthetic trace.jobs=1000 cluster.nodes=12"
        if node.get("schedulers", 1) > 1:  # each has racks, which hold its jobs
            jobs += " cluster.nodes_per_rack=2 trace.max_gpus=32"
        return f"meshwright evaluate env=cluster agent={entry.name}{given} {jobs}"
    if SynchronisationProblem in entry.answers:
        return f"meshwright synchronise agent={entry.name}{given} topology=h100_2x8"
    asked = next((ASKED[kind] for kind in entry.answers if kind in ASKED), "")
    return f"meshwright plan agent={entry.name}{given} {asked} budget_s=10"


def _named(target: str) -> object:
    return get_object(target)


def _class_of(named: object) -> type:
    """The class itself, that of a method, or what a function returns."""
    if inspect.isclass(named):
        return named
    owner = getattr(named, "__self__", None)
    if inspect.isclass(owner):
        return owner
    returned = typing.get_type_hints(named).get("return", object)
    return returned if inspect.isclass(returned) else object


def _next(lines: list[str], start: int, ends: Any) -> int:
    return next((n for n in range(start, len(lines)) if ends(lines[n])), len(lines))


def _joined(lines: list[str]) -> str:
    return textwrap.dedent("\n".join(lines)).strip()
