"""What all apps share: composition, the run folder, `result.json`, exit codes."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from envs.errors import InputError
from experiments.config.command_words import (
    CONFIG_DIR,
    TRUST,
    command_words,
    given_keys,
    listed,
    use_command_line,
    with_recipes,
)
from experiments.config.composing import (
    CONFIG_FILE,
    Composed,
    answer_by_hydra,
    composed_words,
    of_schema,
    plain_config,
    saved_keys,
    take_config_folders,
)
from experiments.config.config_source import job_keys
from experiments.config.help import HELP_FLAGS, verb_help
from experiments.config.signatures import knobs
from experiments.config.verbs import (
    EXPERIMENTS,
    JOBS,
    LISTED,
    Job,
    chosen_job,
    expanded,
    jobs_of,
    of_verb,
    without_choice,
)
from experiments.run.artifacts import claimed, to_yaml
from experiments.run.faults import exit_code_of, fault_of, require_text
from experiments.run.interrupts import goes_on
from experiments.run.job import gone_on_with, loaded_job, result_of, without_extra
from experiments.run.one_run import (
    ENVIRONMENT_FILE,
    Result,
    Run,
    RunConsole,
    heartbeat,
)
from experiments.run.provenance import Provenance, command_line

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


def main_of(verb: str, module: str = "") -> Callable[..., int]:
    """The `main(arguments)` of a command: it runs what is given, or the process's command line.

    The run folder receives `config.yaml` (resolved), `environment.json` (package versions,
    machine) and `result.json`. With `json=true` the content of `result.json` is all that reaches
    standard output; everything else, whoever prints it, reaches standard error.

    Exit codes: 0, where the result has warnings with a line `warning: ...` for each on standard
    error; 2 for bad input, or what this machine has no room for, in one line; 130 when
    interrupted by Ctrl-C, 143 by SIGTERM, in either case within seconds.

    `module` is the `__name__` of the module that has the command: where it is the program of this
    process, as of `python -m experiments.plan`, the command runs at once.
    """

    def main(arguments: list[str] | None = None) -> int:
        given = sys.argv[1:] if arguments is None else arguments
        return exit_code_of(lambda: run_verb(verb, given), last=arguments is None)

    if module == "__main__":
        sys.argv[0] = f"python -m {EXPERIMENTS}.{verb}"
        sys.exit(main())
    return main


def run_job(config: str, arguments: Sequence[str]) -> int:
    """Run the job of a config, whatever else the words of its command could mean; the exit code."""
    return exit_code_of(lambda: run_verb(JOBS[config].verb, arguments, JOBS[config]), last=False)


def job_of(verb: str, words: Sequence[str]) -> Job:
    """The job that a verb's command line means; one that is resumed is of the job with its keys."""
    meant = chosen_job(verb, with_recipes(words))
    chosen = given_keys(words)
    keys = saved_keys(chosen["resume"].strip("'\"")) if "resume" in chosen else None
    same = (x for x in jobs_of(verb) if keys == {knob.name for knob in knobs(x.schema) or ()})
    return meant if keys is None else next(same, jobs_of(verb)[0])


def run_verb(verb: str, arguments: Sequence[str], job: Job | None = None) -> None:
    """What a command does, with its faults as exceptions."""
    require_text(arguments)
    command, called = command_line(), verb
    verb, given = expanded(verb, arguments)
    given = of_verb(verb, given) if job is None or job.is_own else given
    words, flags, folders = command_words(listed(LISTED.get(verb), given))
    for flag in flags:
        if flag.partition("=")[0] not in (*FLAGS, TRUST):
            known = ", ".join((*FLAGS, *CONFIG_DIR, TRUST))
            raise InputError(f"unknown option {flag!r} (known: {known})")
    take_config_folders(folders)
    use_command_line([*words, *flags])
    flags = [flag for flag in flags if not flag.startswith(TRUST)]
    job = job or job_of(verb, words)
    words = without_choice(verb, words, job_keys(job.config))
    if set(flags) & set(HELP_FLAGS):
        print(verb_help(job, words, _called(called)))
        return
    if flags and not set(flags) <= MULTIRUN:
        answer_by_hydra(flags, words, job.config)
        return
    if flags:
        from experiments.studies.multirun import multirun

        multirun(job.config, loaded_job(job)[0], words)
        return
    whole = composed_words(words, job.config)  # a misspelt key is refused before anything is loaded
    schema, task = loaded_job(job)
    composed = of_schema(whole, schema)
    config, folder = composed.config, composed.folder
    stdout = _claim_stdout() if config.json else sys.stdout
    provenance = Provenance(seed=config.seed, command=command)
    text = to_yaml(plain_config(config), provenance)
    found = shutil.which("python") == sys.executable
    python = "python" if found else shlex.quote(sys.executable)  # as it is typed
    with claimed(folder, config, text):
        before = set(os.listdir(folder))
        if getattr(config, "resume", None) is not None:
            provenance, text = gone_on_with(folder, provenance), ""  # its config is there already
        try:
            _run(composed, task, _called(called, python), stdout, provenance, text)
        except Exception as error:
            fault = without_extra(error, verb) or fault_of(error)
            if fault is not None:
                _discard(folder, before)
            if fault is None or fault is error:
                raise
            raise fault from error


def _called(verb: str, python: str = "python") -> str:
    """What is typed for it."""
    words = sys.argv[0]
    return words if words.startswith("meshwright ") else f"{python} -m {EXPERIMENTS}.{verb}"


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
    work = [folder / name for name in ("checkpoints", "cells") if hasattr(config, "resume")]
    if kept := [] if text else sorted((folder / "checkpoints").glob("iteration_*")):
        console.say(f"last checkpoint: {kept[-1].name}")
    again = goes_on(f"{called} {shlex.quote(f'resume={folder}')} goes on with it", *work)
    with again, heartbeat(console, task.__name__.replace("_", " ")):
        result, text = result_of(composed, task, console, provenance, text)
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
