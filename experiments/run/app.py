"""What all apps share: composition, the run folder, `result.json`, exit codes."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar

import hydra
from hydra.errors import InstantiationException
from rich.console import Console

from envs.errors import InputError
from experiments.run.artifacts import to_json, to_yaml, write_json, write_text
from experiments.run.declared import (
    CONFIG_DIR,
    CONFIG_MODULE,
    EXPERIMENTS,
    TRUST,
    command_words,
    form_of,
    own_flags,
    use_command_line,
    variant_of,
    with_recipes,
)
from experiments.run.extras import missing_extra
from experiments.run.faults import fault_of, require_text, told
from experiments.run.folders import claimed
from experiments.run.heartbeat import RunConsole, heartbeat
from experiments.run.help import HELP_FLAGS, app_help
from experiments.run.interrupts import goes_on
from experiments.run.one_run import ENVIRONMENT_FILE, RESULT_FILE, Result, Run
from experiments.run.overrides import (
    CONFIG_FILE,
    Composed,
    check_command_line,
    plain_config,
    saved_keys,
    take_config_folders,
)
from experiments.run.provenance import Provenance, command_line, package_versions, stamp
from models.artifacts import read_json_object

MULTIRUN = {"--multirun", "-m"}
FLAGS = (
    *HELP_FLAGS,
    *sorted(MULTIRUN),
    "--hydra-help",
    "--version",
    "--cfg",
    "-c",
    "--resolve",
    "--info",
    "-i",
)


class AppConfig(Protocol):
    """What the config of every app holds."""

    seed: int
    json: bool


Config = TypeVar("Config", bound=AppConfig)


@dataclass(frozen=True)
class Variant:
    """An app of its own behind the command of another: its config, its schema and its task."""

    config_name: str
    schema: type[Any]
    task: Callable[[Any, Run], Result]


def run_app(
    config_name: str,
    schema: type[Config],
    task: Callable[[Config, Run], Result],
    arguments: list[str] | None = None,
    variants: Mapping[str, Variant] | None = None,
) -> int:
    """Run `task` with the config `conf/<config_name>.yaml`; returns the exit code.

    Of `variants`, `group=option` to app, the first runs in its place whose option the command line
    (or a recipe on it) chooses; the option may be a pattern, as in `env=cluster*`. A run that is
    resumed is of the app whose keys its config has.

    The run folder receives `config.yaml` (resolved), `environment.json` (package versions,
    machine) and `result.json`. With `json=true` the content of `result.json` is all that reaches
    standard output; everything else, whoever prints it, reaches standard error.

    Exit codes: 0, where the result has warnings with a line `warning: ...` for each on standard
    error; 2 for bad input, or what this machine has no room for, told in one line; 130 when
    interrupted by Ctrl-C, 143 by SIGTERM, in either case within seconds.
    """
    app = Variant(config_name, schema, task)
    given = sys.argv[1:] if arguments is None else arguments
    return told(lambda: _run_app(app, given, variants or {}), last=arguments is None)


def main_of(
    config_name: str,
    schema: type[Config],
    task: Callable[[Config, Run], Result],
    variants: Mapping[str, Variant] | None = None,
) -> Callable[..., int]:
    """The `main(arguments)` of an app: `run_app` of what is given, or of the command line."""

    def main(arguments: list[str] | None = None) -> int:
        return run_app(config_name, schema, task, arguments, variants)

    return main


def _run_app(app: Variant, arguments: Sequence[str], variants: Mapping[str, Variant]) -> None:
    """What `run_app` does, with its faults as exceptions."""
    require_text(arguments)
    command = command_line()
    words, flags, folders = command_words(arguments)
    for flag in flags:
        if flag.partition("=")[0] not in (*FLAGS, TRUST):
            known = ", ".join((*FLAGS, *CONFIG_DIR, TRUST))
            raise InputError(f"unknown option {flag!r} (known: {known})")
    take_config_folders(folders)
    use_command_line([*words, *flags])
    flags = [flag for flag in flags if not flag.startswith(TRUST)]
    app = chosen_variant(variants, words) or app
    if set(flags) <= MULTIRUN and flags:
        from experiments.run.multirun import multirun

        multirun(app.config_name, app.schema, words)
        return
    if flags:
        _answer(flags, words, app)
        return
    composed = check_command_line(words, app.config_name, app.schema)
    config, folder = composed.config, composed.folder
    stdout = _claim_stdout() if config.json else sys.stdout
    provenance = Provenance(seed=config.seed, command=command)
    text = to_yaml(plain_config(config), provenance)
    with claimed(folder, config, text):
        before = set(os.listdir(folder))
        if getattr(config, "resume", None) is not None:
            provenance, text = _gone_on_with(folder, provenance), ""  # its config is there already
        try:
            _run(composed, app.task, _called(app, _python()), stdout, provenance, text)
        except Exception as error:
            fault = _without_extra(error, app) or fault_of(error)
            if fault is not None:
                _discard(folder, before)
            if fault is None or fault is error:
                raise
            raise fault from error


def _gone_on_with(folder: Path, provenance: Provenance) -> Provenance:
    """Where the files of a resumed run come from: the command that began it and the one of now."""
    path = folder / ENVIRONMENT_FILE
    origin = read_json_object(path).get("provenance") if path.is_file() else None
    if not isinstance(origin, dict):
        return provenance  # of an older version: the app says what it lacks
    command = f"{origin.get('command')} ; {provenance.command}"
    return replace(provenance, command=command, seed=origin.get("seed"))


def _without_extra(error: Exception, app: Variant) -> InputError | None:
    """What is told where a module of an extra is not installed."""
    if not isinstance(error, ImportError | InstantiationException):
        return None
    told = missing_extra(error)
    return None if told is None else InputError(f"{form_of(app.config_name).name!r} {told}")


def chosen_variant(variants: Mapping[str, Variant], words: Sequence[str]) -> Variant | None:
    """The variant that a command line is about; None: the app itself."""
    chosen = dict(word.split("=", 1) for word in with_recipes(words) if "=" in word)
    keys = saved_keys(chosen["resume"].strip("'\"")) if "resume" in chosen else None
    if keys is None:
        named = variant_of(variants, words)
        return None if named is None else variants[named]
    of_keys = (x for x in variants.values() if keys == {key.name for key in fields(x.schema)})
    return next(of_keys, None)


def _called(app: Variant, python: str = "python") -> str:
    """What is typed for it."""
    words = sys.argv[0]
    by_verb = words.startswith("meshwright ")
    return words if by_verb else f"{python} -m {EXPERIMENTS}.{form_of(app.config_name).name}"


def _python() -> str:
    """What is typed for the Python that runs."""
    typed = shutil.which("python") == sys.executable
    return "python" if typed else shlex.quote(sys.executable)


def _answer(flags: Sequence[str], words: Sequence[str], app: Variant) -> None:
    """Print what the flags ask for: help, the config, Hydra's own; nothing runs."""
    if set(flags) & set(HELP_FLAGS):
        form = form_of(app.config_name)
        print(app_help(form, words, _called(app)))
        return
    given = [word for word in words if "=" in word]
    asked = [word for word in words if "=" not in word]
    overrides = [*asked, *check_command_line(given, app.config_name, app.schema).overrides]
    overrides += [flag for flag in own_flags() if not flag.startswith(TRUST)]

    def nothing(_: object) -> None:
        """What Hydra is to run if it does not print."""

    sys.argv[1:] = [*flags, *overrides]
    module = f"pkg://{CONFIG_MODULE}"
    hydra.main(config_path=module, config_name=app.config_name, version_base="1.3")(nothing)()


def _run(
    composed: Composed[Any],
    task: Callable[[Any, Run], Result],
    called: str,
    stdout: TextIO,
    provenance: Provenance,
    text: str,
) -> None:
    """Run the app that is `called` so; `text` is its config's, empty where a run is resumed."""
    config, folder = composed.config, Path(os.path.abspath(composed.folder))
    console = RunConsole(stderr=config.json)
    if text:
        environment = stamp(_environment(), provenance, kind="environment")
        write_text(folder / CONFIG_FILE, text)
        write_json(folder / ENVIRONMENT_FILE, environment)
    run = Run(folder, console, provenance, composed.choices, composed.overrides)
    work = [folder / name for name in ("checkpoints", "cells") if hasattr(config, "resume")]
    if kept := [] if text else sorted((folder / "checkpoints").glob("iteration_*")):
        console.say(f"last checkpoint: {kept[-1].name}")
    again = goes_on(f"{called} {shlex.quote(f'resume={folder}')} goes on with it", *work)
    with again, heartbeat(console, task.__name__.replace("_", " ")):
        result = task(config, run)
    warned = {"warnings": list(result.warnings)} if result.warnings else {}
    values = {**result.values, **warned, "run_folder": str(folder)}
    document = stamp(values, result.provenance, kind="result")
    text = to_json(document)
    write_text(folder / RESULT_FILE, text)
    if config.json:
        stdout.write(text)
        stdout.flush()
    else:
        keys = result.values if result.shown is None else result.shown
        _print_values(console, {key: result.values[key] for key in keys})
        console.print(f"run folder: {folder}", soft_wrap=True)
        if pictures := sorted(path.name for path in folder.glob("*.png")):
            console.print(f"pictures in it: {', '.join(pictures)}", soft_wrap=True)
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr, flush=True)


def _print_values(console: Console, values: Mapping[str, object]) -> None:
    shown = {
        key: f"{value:.6g}" if isinstance(value, float) else str(value)
        for key, value in values.items()
        if isinstance(value, str | int | float | bool) and value != ""
    }
    width = max(map(len, shown), default=0)
    for key, text in shown.items():  # paths whole, so that they can be copied
        words = "none" if text in {"nan", "inf", "-inf"} else text
        console.print(f" {key:{width}}  {words}", soft_wrap=True, markup=False)


def _environment() -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor_cores": os.cpu_count(),
        "packages": package_versions(),
    }


def _claim_stdout() -> TextIO:
    """Standard output for the result alone: file descriptor 1 becomes standard error for good."""
    if getattr(sys.stdout, "name", "") == os.devnull:
        raise InputError("config key 'json': standard output is closed")
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(kept, "w", encoding="utf-8")


def _discard(folder: Path, before: set[str]) -> None:
    """Take back what a run that was refused has written, unless it has work of its own to resume.

    `before` are the names that the folder held before it.
    """
    if CONFIG_FILE in before:  # an earlier run's
        return
    if folder.is_dir() and set(os.listdir(folder)) - before <= {CONFIG_FILE, ENVIRONMENT_FILE}:
        for name in (CONFIG_FILE, ENVIRONMENT_FILE):
            (folder / name).unlink(missing_ok=True)
        if not before:
            folder.rmdir()
