"""One entry per name of the config groups `agent` and `env`, and its Markdown page.

A name stands for a class, whose docstring mkdocstrings renders. The sections `Knows`, `Guarantees`
and `Source`, of that docstring or of what the config hands to the class, stand in the tables.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.utils import get_object
from omegaconf import OmegaConf

from agents.step.problems import (
    BandwidthPlanning,
    JointPlanning,
    Partition,
    SharedPlanning,
    StepPlanning,
)
from envs.hybrid.problem import HybridProblem
from envs.synchronisation.problem import SynchronisationProblem
from experiments.config.composing import hydra_over_configs
from experiments.config.config_source import SHIPPED, options
from experiments.config.papers import PAPERS
from experiments.config.signatures import knobs

RUN = "meshwright "
STEP, PLANES = "graph=gpt2 topology=mixed_v100_p100", "graph=gpt2 topology=planes_4x1"
PROBLEMS: Mapping[type, str] = {  # how the commands that a user copies ask about each problem
    StepPlanning: STEP,
    Partition: "",
    BandwidthPlanning: f"problem=bandwidth {PLANES}",
    JointPlanning: f"problem=joint {PLANES}",
    SharedPlanning: f"problem=shared 'problem.plans=[<plan file>]' {PLANES}",
    HybridProblem: "problem=pipeline graph=gpt2 topology=a100_4x8",
    SynchronisationProblem: "",
}
COMMANDS = {  # of names without a file, where the command is not that of all of their kind
    "bandwidth": "meshwright train env=bandwidth agent=ppo_bandwidth model=channels "
    "graph=bert_base topology=planes_4x1 training.budget_s=60",
    "bandwidth_toy": "meshwright train env=bandwidth_toy agent=ppo_bandwidth model=channels "
    "training.max_steps=3000",
    "learned": "meshwright plan agent=learned graph=bert_large topology=mixed_v100_p100 budget_s=1",
    "switchml": "meshwright synchronise agent=switchml topology=h100_2x8 aggregation=true",
    "ppo_cluster": "meshwright train env=cluster_mixed trace.format=synthetic trace.jobs=40000 "
    "env.windows.jobs_per_gpu=[1,2] 'clusters=[{_target_: envs.cluster.nodes.Cluster.uniform, "
    "nodes: 8, gpus_per_node: 8, nodes_per_rack: 4}]' training.budget_s=60",
}
LEARNING = Path(__file__).with_name("learning.md")
MEASURED = "| steps | untrained | learned | best simple rule |"  # heads its table of environments
KNOWLEDGE = {  # the classes of `agents.cluster.policy.Knowledge`
    "nothing": "nothing of a job that has not finished but its gang, its owner and its progress",
    "predictions": "predictions: what jobs that have finished tell of the others",
    "durations": "durations: how long every job takes",
}
ABOUT = {
    "environment": "What is decided, step by step. `env=` names one; in Python `mw.make(id)` "
    "makes it, of Gymnasium or of PettingZoo. The docstring of the class is the specification; "
    "toys have proved optima. Each page has a picture and, but for `Pricing`, the learning curve "
    "of a minute of training.",
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
    """What is said of one name."""

    group: str  # "env" or "agent"
    name: str
    node: Mapping[str, Any]  # its config, with every default
    comments: Sequence[str]  # that its file begins with; none: it has no file

    @property
    def kind(self) -> str:
        """What it is: "environment", "planner", "learner" or "scheduler"."""
        if self.group == "env":
            return "environment"
        others = "learner" if "agents.rllib." in self.target else "scheduler"
        return "planner" if self.answers else others

    @property
    def summary(self) -> str:
        """The first comment of its file; without one, the first line of the docstring."""
        named = get_object(self.target)
        about = inspect.getdoc(getattr(named, "__self__", named)) or ""
        lines = (line for line in self.comments if not line.startswith(RUN))
        return " ".join(lines) or about.partition("\n")[0]

    @property
    def command(self) -> str:
        """What a user copies."""
        given = [line for line in self.comments if line.startswith(RUN)]
        if given or self.name in COMMANDS:
            return given[0] if given else COMMANDS[self.name]
        missing = "".join(f" {key}=<folder>" for key in _missing("agent", self.node))
        if self.group == "env":
            module, _, own = self.target.removesuffix(".of_problem").rpartition(".")
            if "/" in self.id:
                make = f"mw.make('{self.id}').reset(seed=0)"
                return f'python -c "import meshwright as mw; print({make})"'
            return f'python -c "from {module} import {own}; print({own}().reset(seed=0))"'
        if self.kind == "scheduler":
            jobs = "trace.format=synthetic trace.jobs=1000 cluster.nodes=12"
            schedulers = self.node.get("partitioned", {}).get("schedulers", 1)
            if schedulers > 1:  # each has racks, which hold its jobs
                jobs += " cluster.nodes_per_rack=2 trace.max_gpus=32"
            return f"{RUN}evaluate env=cluster agent={self.name}{missing} {jobs}"
        if SynchronisationProblem in self.answers:
            return f"{RUN}synchronise agent={self.name}{missing} topology=h100_2x8"
        asked = next(filter(None, map(PROBLEMS.get, self.answers)))
        return f"{RUN}plan agent={self.name}{missing} {asked} budget_s=10"

    @property
    def target(self) -> str:
        return str(self.node["_target_"])

    @property
    def parts(self) -> list[str]:
        """What the config hands over by `_target_`."""
        targets = re.findall('"_target_": "(.*?)"', json.dumps(self.node))
        return [target for target in dict.fromkeys(targets) if target != self.target]

    @property
    def made(self) -> Any:
        """The class that `_target_` names, that of a method, or what a function returns."""
        return class_of(self.target)

    def fact(self, name: str) -> str:
        """`Knows`, `Guarantees` or `Source`, of the first that tells it."""
        found = [section(get_object(self.target), name), section(self.made, name)]
        found += [section(class_of(part), name) for part in self.sourced]
        return next(filter(None, found), "")

    @property
    def sourced(self) -> list[str]:
        """The parts that say where they are from."""
        return [part for part in self.parts if section(class_of(part), "Source")]

    @property
    def knows(self) -> str:
        """What it may look at: the class of information of a scheduler; else the section."""
        parts = (self.target, *self.parts)
        declared = [getattr(class_of(part), "knows", None) for part in parts]
        found = [KNOWLEDGE[one] for one in declared if isinstance(one, str)]
        found += ["what its observation holds, below"] if self.group == "env" else []
        found += [self.fact("Knows"), *(section(asked, "Knows") for asked in self.answers)]
        return next(filter(None, found), "")

    @property
    def answers(self) -> list[type]:
        """The kinds of problem that it solves."""
        return [one for one in PROBLEMS if one in getattr(self.made, "solves", ())]

    @property
    def id(self) -> str:
        """The id of an environment; with `meshwright/` where Gymnasium knows it."""
        docs = [get_object(self.target).__doc__, inspect.getmodule(self.made).__doc__]
        found = re.search(r"(?:meshwright/)?\w+-v\d+", f"{self.summary}\n{docs}")
        return found[0] if found and self.group == "env" else ""

    @property
    def picture(self) -> str:
        """Its path in the site; those of training runs lie in `docs` itself."""
        if self.kind == "learner":
            return f"pictures/{self.name}.png"
        return f"catalogue/pictures/{self.kind}_{self.name}.png"

    @property
    def learned(self) -> Sequence[str]:
        """Steps and scores of a minute of training, from `learning.md`; empty: it has none."""
        return minutes().get(self.learned_name, ())

    @property
    def learned_name(self) -> str:
        """Its id as that table has it."""
        return self.id.removeprefix("meshwright/").removesuffix("-v0")

    @property
    def curve(self) -> str:
        """The path of its learning curve in the site; empty: there is none."""
        return f"catalogue/pictures/curve_{self.name}.png" if self.learned else ""

    @property
    def path(self) -> str:
        return f"catalogue/{self.kind}s/{self.name}.md"


def section(named: object, name: str) -> str:
    """A section of a docstring, with a heading or in Google's form; empty: there is none."""
    text = f"{inspect.getdoc(named) or ''}\n"
    found = re.search(rf"^{name}:\n((?: .*\n|\n)+)|^## {name}\n((?:(?!## ).*\n)+)", text, re.M)
    return " ".join((found[1] or found[2]).split()) if found else ""


@cache
def class_of(target: str) -> Any:
    """The class of that dotted name, of a method, or that a function returns."""
    named: Any = get_object(target)
    if inspect.isclass(named):
        return named
    return getattr(named, "__self__", None) or typing.get_type_hints(named).get("return")


@cache
def minutes() -> dict[str, list[str]]:
    """The cells of `learning.md`'s table of environments by name, in the order of its rows."""
    table = LEARNING.read_text(encoding="utf-8").partition(MEASURED)[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.M)
    return {name: cells.split(" | ") for name, cells in rows}


@cache
def entries() -> tuple[Entry, ...]:
    """All environments that have steps and all of `agent`, by name."""
    names = [(group, name) for group in ("env", "agent") for name in options(group)]
    with hydra_over_configs():
        whole = compose(overrides=[f"+{group}@{group}.{name}={name}" for group, name in names])
    nodes: Any = OmegaConf.to_container(whole, resolve=False)
    found = [
        Entry(group, name, nodes[group][name], _comments(group, name)) for group, name in names
    ]
    named = {entry.target for entry in found}
    for paper in PAPERS:  # environments that are classes alone, not names of `env=`
        for id_, row in paper.pettingzoo.items():
            target, name = paper.named(row).replace(":", "."), id_.removesuffix("-v0")
            if target not in named:
                snake = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
                found.append(Entry("env", snake, {"_target_": target}, ()))
    found.sort(key=lambda entry: entry.name)
    return tuple(e for e in found if e.group == "agent" or hasattr(e.made, "step"))


def _comments(group: str, name: str) -> list[str]:
    file = SHIPPED / group / f"{name}.yaml"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [line[2:] for line in takewhile(lambda line: line.startswith("#"), lines)]


def _missing(at: str, node: Any) -> Iterator[str]:
    """Dotted keys of what has to be given."""
    if node == "???":
        yield at
    for key, value in node.items() if isinstance(node, Mapping) else ():
        yield from _missing(f"{at}.{key}", value)


def page(entry: Entry) -> str:
    """What it does, what it knows, what it guarantees, where it comes from, how to run it."""
    file = f"`conf/{entry.group}/{entry.name}.yaml`, which says what differs from the defaults"
    facts = {
        "Id": entry.id and f"`{entry.id}`",
        "Knows": entry.knows,
        "Guarantees": entry.fact("Guarantees"),
        "Source": entry.fact("Source"),
        "Code": f"`{entry.target}`",
        "Config": file if entry.comments else "the defaults of its constructor",
    }
    target = f"{entry.made.__module__}.{entry.made.__qualname__}"
    return "\n\n".join(
        [
            f"# {entry.name}", entry.summary, f"![{CAPTIONS[entry.kind]}](../../{entry.picture})",
            _table([("", ""), *((f"**{key}**", text) for key, text in facts.items() if text)]),
            *_learning(entry),
            f"## Run it\n\n```bash\n{entry.command}\n```",
            f"## How it works\n\n{DIRECTIVE.format(target)}",
            *(f"### {x.rpartition('.')[2]}\n\n{DIRECTIVE.format(x)}" for x in entry.sourced),
            "\n".join(["## Settings\n\n```yaml", *_yaml(entry.node), "```\n"]),
        ]
    )  # fmt: skip


def _learning(entry: Entry) -> Iterator[str]:
    """The learning curve of an environment, and its numbers."""
    if entry.learned:
        steps, untrained, learned, rule = entry.learned[:4]
        yield "## Learning curve"
        yield f"![Best score so far, by the share of the training, 0 to 1](../../{entry.curve})"
        yield _table(
            [
                ("steps in 60 s", "score, untrained", "score, learned", "best simple rule"),
                (steps, untrained, learned, rule),
            ]
        )
        yield (
            f"`{entry.id}` with its defaults, the perceptron of `task=environment`, one seed, one "
            "core. A score is the objective over that of random play; lower is better. Red is "
            "learned, blue the best simple rule, dashed random play ([all](../../learning.md))."
        )


def _yaml(node: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """The lines of a config, each with what its value means."""
    helps = {knob.name: f"  # {knob.help}" for knob in knobs(str(node.get("_target_"))) or ()}
    for key, value in node.items():
        inner = value if isinstance(value, Mapping) else {}
        shown = "" if inner else json.dumps(value)
        yield f"{indent}{key}: {shown}{helps.get(key, '')}".rstrip(" #")
        yield from _yaml(inner, f"{indent}  ")


def index(kind: str) -> str:
    """The page of a kind, with a table of its entries."""
    mine = [entry for entry in entries() if entry.kind == kind]
    third = "id" if kind == "environment" else "knows"
    rows = [("name", "what", third, "source")]
    for e in mine:
        short = f"`{e.id}`" if e.id else re.split(r"[:.;,](?=\s|$)| of a job", e.knows)[0]
        rows.append((f"[{e.name}]({e.name}.md)", e.summary, short, e.fact("Source")))
    return f"# {kind.title()}s\n\n{ABOUT[kind]}\n\n{_table(rows)}"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    lines = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
