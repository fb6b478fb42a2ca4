"""The Markdown of the catalogue: a page per entry, and a table of each kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from experiments.catalogue.entries import KINDS, Docstring, Entry, Kind, entries, gymnasium_id

FOLDER = "catalogue"
PICTURES = f"{FOLDER}/pictures"
DRAWN = "pictures"  # of training runs, kept in `docs`
ABOUT: dict[Kind, tuple[str, str]] = {
    "environment": (
        "Environments",
        "What is decided, step by step. `env=` names one; from Python `mw.make(id)` makes it. The "
        "docstring of the class is its specification, and the toys have proved optima.",
    ),
    "planner": (
        "Planners",
        "Who decides a whole training step at once. `agent=` names one. Whatever a planner says of "
        "itself, its plan is simulated again and stands beside a lower bound. All pictures show "
        "the plan for one small step of 80 operators in two micro-batches, on two V100 and two "
        "P100, or on four servers where bandwidth is decided, found in four seconds or less; those "
        "of synchronisation show 100 MB summed by two servers of four devices.",
    ),
    "learner": (
        "Learners",
        "How policies are trained, with `meshwright train`. Each is PPO with the numbers that suit "
        "the steps of its environment.",
    ),
    "scheduler": (
        "Schedulers",
        "Who decides which jobs of a cluster run when, and where. `env=cluster agent=` names one. "
        "Compare within one class of information. All pictures show the same 24 jobs on two nodes "
        "of four V100 and two of four P100, where a stop costs 20 s.",
    ),
}
_ITEM = re.compile(r"^(\s*)(\*|-|\d+\.) ")


@dataclass(frozen=True)
class Page:
    """A file of the site, by its path in it."""

    title: str
    path: str
    text: str


def kind_folder(kind: Kind) -> str:
    return f"{FOLDER}/{ABOUT[kind][0].lower()}"


def page_path(entry: Entry) -> str:
    return f"{kind_folder(entry.kind)}/{entry.name}.md"


def picture_path(entry: Entry) -> str:
    """Of the picture in the site; those of training runs lie in `docs` itself."""
    drawn = entry.kind == "learner" or "???" in entry.text
    return f"{DRAWN}/{entry.name}.png" if drawn else f"{PICTURES}/{entry.kind}_{entry.name}.png"


def pages() -> Iterator[Page]:
    """Every page: those of a kind after its table."""
    for kind in KINDS:
        mine = [entry for entry in entries() if entry.kind == kind]
        yield Page(ABOUT[kind][0], f"{kind_folder(kind)}/index.md", _table(kind, mine))
        for entry in mine:
            yield Page(entry.name, page_path(entry), page_text(entry))


def page_text(entry: Entry) -> str:
    """What it does, what it knows, what it guarantees, where it comes from, how to run it."""
    lines = [f"# {entry.name}", "", entry.summary, ""]
    lines += [f"![{_caption(entry)}](../../{picture_path(entry)})", ""]
    lines += ["| | |", "|---|---|"]
    if entry.kind == "environment":
        lines.append(f"| **Id** | `{gymnasium_id(entry)}` |")
    for name, text in (
        ("Knows", entry.knows),
        ("Guarantees", entry.fact("Guarantees")),
        ("Source", entry.fact("Source")),
        ("Code", f"`{entry.target}`"),
        ("Config", f"`conf/{'env' if entry.kind == 'environment' else 'agent'}/{entry.name}.yaml`"),
    ):
        if text:
            lines.append(f"| **{name}** | {_cell(text)} |")
    lines += ["", "## Run it", "", "```bash", entry.command, "```", ""]
    lines += ["## How it works", "", markdown_of(entry.doc), ""]
    told = [part for part in entry.parts if set(part.doc.facts) - set(entry.doc.facts)]
    for part in told:
        lines += [f"### `{part.key}`: {part.target.rsplit('.', 1)[-1]}", ""]
        lines += [markdown_of(part.doc), ""]
    others = [part for part in entry.parts if part not in told and "." not in part.key]
    if others:
        lines += ["## Made of", "", "| key | object | what |", "|---|---|---|"]
        lines += [f"| `{p.key}` | `{p.target}` | {_cell(p.doc.first)} |" for p in others]
        lines.append("")
    lines += ["## Settings", "", "```yaml", entry.text.rstrip(), "```", ""]
    return "\n".join(lines)


def markdown_of(doc: Docstring) -> str:
    """A docstring's text as Markdown: lists set apart, headings below those of the page."""
    lines: list[str] = []
    for line in doc.body.splitlines():
        item = _ITEM.match(line)
        if line.startswith("## "):
            line = f"#{line}"  # noqa: PLW2901
        elif item and lines and lines[-1] and not _ITEM.match(lines[-1]) and lines[-1][:1] != " ":
            lines.append("")
        elif line.startswith("  ") and not item:
            line = line.strip()  # goes on with its item  # noqa: PLW2901
        lines.append(line)
    return "\n".join(lines)


def _table(kind: Kind, mine: list[Entry]) -> str:
    title, about = ABOUT[kind]
    lines = [f"# {title}", "", about, ""]
    if kind == "environment":
        lines += ["| name | id | what |", "|---|---|---|"]
        lines += [
            f"| [{e.name}]({e.name}.md) | `{gymnasium_id(e)}` | {_cell(e.summary)} |" for e in mine
        ]
    else:
        lines += ["| name | what | knows | source |", "|---|---|---|---|"]
        lines += [
            f"| [{e.name}]({e.name}.md) | {_cell(e.summary)} | {_cell(_short(e.knows))} | "
            f"{_cell(e.fact('Source'))} |"
            for e in mine
        ]
    return "\n".join([*lines, ""])


def _caption(entry: Entry) -> str:
    return {
        "environment": "What the environment draws of itself after a few random actions",
        "planner": "The plan for the example, step time beside the lower bound",
        "learner": "A training run; its command stands in the text fields of the file",
        "scheduler": "Who held which GPU when, and the jobs that waited",
    }[entry.kind]


def _short(text: str) -> str:
    """What stands before the first colon, full stop or `of`."""
    return re.split(r"[:.;,](?=\s|$)| of a job", text)[0]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
