"""What `--help` prints, and what a shell completes: read from signatures, docstrings and names."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from omegaconf import OmegaConf

from experiments.config.command_words import (
    RECIPE,
    command_words,
    given_keys,
    recipe_choices,
    use_config_folders,
    with_recipes,
)
from experiments.config.config_source import (
    SHIPPED_CONFIGS,
    Choice,
    choices,
    fitting,
    job_config,
    options,
)
from experiments.config.registry import GROUP_HELP
from experiments.config.signatures import NOTHING, completed, definition, knobs
from experiments.config.verbs import COMMANDS, Job, chosen_job, expanded, jobs_of

HELP_FLAGS = ("--help", "-h")
FLAGS = {
    "--help, -h": "this text; beside group=option also the keys of that option",
    "--config-dir <folder>": "options of one's own: <folder>/agent/mine.yaml is agent=mine",
    "--trust <name>": "a class of one's own that a file or a saved run may name",
    "--multirun, -m": "a sweep: one run for each combination of key=value,value (docs/sweeps.md)",
    "--cfg job": "the config that a command line comes to, as YAML; nothing runs",
    "--info searchpath": "where configs are looked for, and more (defaults-tree, plugins, ...)",
    "--version": "the version of Hydra, which composes the config",
}
COMMON = {"seed": "of everything random in the run", "json": "standard output is one JSON document"}
NAME_WIDTH = 26
SCRIPTS = {
    "bash": """\
_meshwright() {
    local line=${COMP_LINE:0:$COMP_POINT} word
    word=${line##*[[:space:]]}
    mapfile -t COMPREPLY < <(meshwright --complete "$line" 2>/dev/null)
    # bash takes "=" and ":" for the ends of words, and puts what it is given behind the last
    local break=${word%"${word##*[=:]}"}
    COMPREPLY=("${COMPREPLY[@]#"$break"}")
}
complete -o default -o nospace -F _meshwright meshwright
""",
    "zsh": """\
#compdef meshwright
_meshwright() {
    local -a found
    found=("${(@f)$(meshwright --complete "${words[1,CURRENT]}" 2>/dev/null)}")
    if [[ -n ${found[1]} ]]; then compadd -S '' -a found; else _files; fi
}
compdef _meshwright meshwright
""",
    "fish": "complete -c meshwright -a '(meshwright --complete (commandline -cp) 2>/dev/null)'\n",
}


def command_help(command: str, words: Sequence[str], called: str) -> str:
    """The help of the job that the words of a command, or of another name, mean."""
    verb, given = expanded(command, words)
    return verb_help(chosen_job(verb, with_recipes(given)), given, called)


def verb_help(shown: Job, words: Sequence[str], command: str) -> str:
    """The help of a job.

    `command` is what it was called by, `python -m experiments.plan` for example.
    """
    verb = shown.verb
    width = max(80, min(shutil.get_terminal_size((100, 24)).columns, 120))
    about = shown.about.replace("python -m experiments.", re.sub(r"\w+$", "", command))
    lines = [about, "", f"{command} key=value ...", ""]
    others = [job for job in jobs_of(verb) if shown.is_own and job is not shown]
    if others:
        lines += ["Other jobs behind this command, each with a --help of its own:", ""]
        for job in others:
            lines += _entry(job.words.partition(" ")[0].replace("?*", "[...]"), job.summary, width)
        lines.append("")
    lines += _groups(shown, width)
    lines += ["Keys (key=value; what is given here is the default):", ""]
    taken = {choice.package.partition(".")[0] or choice.group for choice in choices(shown.config)}
    named = given_keys(words)
    whole = _composed(shown, named)
    config = {key: x for key, x in job_config(shown.config).items() if key not in taken}
    config = _as_composed({**config, **dict.fromkeys(COMMON)}, whole)
    lines += _keys("", config, _helps(shown.schema) | COMMON, width)
    for choice in choices(shown.config):
        if choice.word in named or (
            not choice.package and len(fitting(choice.group, shown.config, choice.package)) == 1
        ):
            option, place = named.get(choice.word, choice.option), choice.package or choice.group
            inner = reduce(lambda found, key: found.get(key) or {}, place.split("."), whole)
            node = _as_composed(_node(choice.group, option) or completed(inner), inner)
            about, keys = _summary(node), list(_keys(f"{place}.", node, {}, width))
            if about or keys:
                lines += ["", f"Keys of {choice.group}={option}: {about}", "", *keys]
    lines += ["", "Options:", ""]
    for flag, meaning in FLAGS.items():
        lines += _entry(flag, meaning, width)
    return "\n".join(lines)


def candidates(line: str) -> list[str]:
    """Whole words that the last word of `line`, which begins with the command, may be meant as."""
    words, _, last = line.rpartition(" ")
    verb, *before = words.split()[1:] or [""]
    found: Iterable[str] = ()
    if not verb:
        found = [*(f"{name} " for name in COMMANDS), "--help ", "--version ", "--completion "]
    elif verb == "--completion":
        found = SCRIPTS
    elif verb in COMMANDS:
        found = _of_verb(verb, before, last)
    return [word for word in dict.fromkeys(found) if word.startswith(last)]


def _of_verb(verb: str, before: Sequence[str], last: str) -> Iterator[str]:
    if last.startswith("-"):
        yield from (flag.partition(" ")[0].rstrip(",") for flag in FLAGS)
        return
    verb, before = expanded(verb, before)
    words, _, folders = command_words(before)
    use_config_folders(folders)
    shown = chosen_job(verb, with_recipes([*words, last]))
    named = given_keys(words)
    yield from (f"+{RECIPE}={name} " if "=" in last else f"+{RECIPE}=" for name in _recipes(shown))
    for job in jobs_of(verb) if "=" in last else ():  # the words that lead to another job
        for group in job.groups:
            yield from (f"{group}={x} " for x in options(group) if job.is_meant(x, group))
    for choice in choices(shown.config):
        if "=" not in last:
            yield f"{choice.word}="
        elif last.startswith(f"{choice.word}="):
            yield from (
                f"{choice.word}={x} " for x in fitting(choice.group, shown.config, choice.package)
            )
        node = _node(choice.group, named.get(choice.word, choice.option))
        yield from _completed(f"{choice.package or choice.group}.", node, last)
    yield from _completed("", {**job_config(shown.config), "seed": 0, "json": False}, last)


def _completed(prefix: str, node: Mapping[str, Any], last: str) -> Iterator[str]:
    for name, value, _ in _flat(prefix, node, {}):
        if isinstance(value, bool) and last.startswith(f"{name}="):
            yield from (f"{name}=true ", f"{name}=false ")
        elif "=" not in last:
            yield f"{name}="


def _groups(shown: Job, width: int) -> list[str]:
    lines: list[str] = []
    places: dict[tuple[str, str], list[Choice]] = {}
    for choice in choices(shown.config):
        places.setdefault((choice.group, choice.package.partition(".")[0]), []).append(choice)
    others = [job for job in jobs_of(shown.verb) if job is not shown]
    for (group, stem), same in places.items():
        choice = same[0]
        word = f"{group}@{stem}.<name>" if "." in choice.package else choice.word
        chosen = ", ".join(dict.fromkeys(x.option for x in same))
        lines += _entry(f"{word}={chosen}", GROUP_HELP.get(group, ""), width)
        alike = fitting(group, shown.config, choice.package)
        taken = {x for x in alike for job in others if job.is_meant(x, group)}
        fit = [x for x in alike if choice.package or x not in taken]
        lines += _wrapped(", ".join(fit), "      ", width)
    if found := _recipes(shown):
        lines += _entry(f"+{RECIPE}=", "what is chosen together", width)
        lines += _wrapped(", ".join(found), "      ", width)
    head = "Groups (group=option; what is given here is the default):"
    return [head, "", *lines, ""] if lines else []


def _recipes(job: Job) -> list[str]:
    """The recipes all of whose groups a job takes."""
    groups = {choice.group for choice in choices(job.config)}
    named = {x: {w.partition("=")[0] for w in recipe_choices(x)} for x in options(RECIPE)}
    taken = {x: {w for w in words if not w.startswith(RECIPE)} for x, words in named.items()}
    return [name for name, words in taken.items() if words and words <= groups]


def _composed(shown: Job, named: Mapping[str, str]) -> dict[str, Any]:
    """The config of a job with the options that are chosen, and no other value given.

    Raises:
        InputError: there is no such option.
    """
    # with NumPy, which shells do not wait for
    from experiments.config.composing import composed_words

    words = {choice.word for choice in choices(shown.config)} | {RECIPE, f"+{RECIPE}"}
    chosen = [f"{word}={option}" for word, option in named.items() if word in words]
    found: Any = OmegaConf.to_container(composed_words(chosen, shown.config), resolve=False)
    return dict(found)


def _as_composed(value: Any, composed: Any) -> Any:
    """What a value comes to: of a mapping the keys of its own, not those of groups inside it."""
    if not isinstance(composed, Mapping):
        return composed
    if not isinstance(value, Mapping) or not value:
        return "{...}" if composed else composed
    if value.get("_target_") not in {None, composed.get("_target_")}:
        return composed
    return {key: _as_composed(x, composed.get(key, x)) for key, x in value.items()}


def _node(group: str, option: str) -> dict[str, Any]:
    """The config of an option, over those that it inherits from."""
    if not SHIPPED_CONFIGS.is_config(f"{group}/{option}"):
        return {}
    node = SHIPPED_CONFIGS.node(f"{group}/{option}")
    above = [x for x in node.get("defaults", ()) if isinstance(x, str) and x != "_self_"]
    return {key: x for one in above for key, x in _node(group, one).items()} | node


def _summary(node: Mapping[str, Any]) -> str:
    found = definition(str(node.get("_target_")))
    return "" if found is None else found.about.partition("\n")[0]


def _helps(target: str) -> dict[str, str]:
    return {knob.name: knob.help for knob in knobs(target) or ()}


def _flat(
    prefix: str, node: Mapping[str, Any], helps: Mapping[str, str]
) -> Iterator[tuple[str, Any, str]]:
    """(dotted key, value, help) of everything in a config that can be given."""
    helps = {**_helps(str(node.get("_target_"))), **helps}
    for key, value in node.items():
        if key in {"defaults", "hydra"} or str(key).startswith("_"):
            continue
        if isinstance(value, Mapping) and value:
            if helps.get(key):
                yield f"{prefix}{key}", NOTHING, helps[key]  # the head of what follows
            yield from _flat(f"{prefix}{key}.", value, {})
        else:
            yield f"{prefix}{key}", value, helps.get(key, "")


def _keys(
    prefix: str, node: Mapping[str, Any], helps: Mapping[str, str], width: int
) -> Iterator[str]:
    for name, value, meaning in _flat(prefix, node, helps):
        objects = isinstance(value, list) and any(isinstance(one, Mapping) for one in value)
        text = "[...]" if objects else value
        text = text if isinstance(text, str) else json.dumps(text, default=str)
        yield from _entry(name if value is NOTHING else f"{name}={text}", meaning, width)


def _entry(name: str, meaning: str, width: int) -> list[str]:
    """A name and, beside it or below where the name is long, what it means."""
    head = f"  {name}"
    if not meaning:
        return [head]
    indent = " " * (NAME_WIDTH + 4)
    body = _wrapped(meaning, indent, width)
    if len(head) < len(indent) - 1:
        return [head.ljust(len(indent)) + body[0].lstrip(), *body[1:]]
    return [head, *body]


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
