"""One job in its run folder: what it needs is loaded, its files and its result are written."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from hydra.errors import InstantiationException
from hydra.utils import get_class, get_object

from envs.errors import InputError
from experiments.config.composing import CONFIG_FILE, Composed, check_command_line, plain_config
from experiments.config.config_source import job_keys
from experiments.config.papers import register_environments
from experiments.config.targets import missing_extra
from experiments.config.verbs import Job, without_choice
from experiments.run.artifacts import claimed, to_json, to_yaml, write_json, write_text
from experiments.run.one_run import ENVIRONMENT_FILE, RESULT_FILE, Result, Run, RunConsole
from experiments.run.provenance import Provenance, package_versions, stamp
from models.artifacts import read_json_object


def loaded_job(job: Job) -> tuple[type[Any], Callable[[Any, Run], Result]]:
    """The dataclass and the task of a job.

    Raises:
        InputError: it needs an extra that is not installed.
    """
    register_environments()
    try:
        return get_class(job.schema), get_object(job.task)
    except Exception as error:
        fault = without_extra(error, job.verb)
        if fault is None:
            raise
        raise fault from error


def run_quietly(job: Job, words: Sequence[str], log: TextIO) -> None:
    """Run a job in the run folder that its words name, in this process; `log` gets what it says.

    Raises:
        InputError: as the command's.
    """
    schema, task = loaded_job(job)
    words = without_choice(job.verb, words, job_keys(job.config))
    composed = check_command_line(words, job.config, schema)
    provenance = Provenance(
        composed.config.seed, command=shlex.join(["meshwright", job.verb, *words])
    )
    text = to_yaml(plain_config(composed.config), provenance)
    with claimed(composed.folder, composed.config, text):
        if getattr(composed.config, "resume", None) is not None:
            provenance, text = gone_on_with(composed.folder, provenance), ""
        result_of(composed, task, RunConsole(file=log), provenance, text)


def result_of(
    composed: Composed[Any],
    task: Callable[[Any, Run], Result],
    console: RunConsole,
    provenance: Provenance,
    text: str,
) -> tuple[Result, str]:
    """What a task comes to, and the text of its `result.json`, which is written last."""
    folder = Path(os.path.abspath(composed.folder))
    if text:
        environment = {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "processor_cores": os.cpu_count(),
            "packages": package_versions(),
        }
        write_text(folder / CONFIG_FILE, text)
        document = stamp(environment, provenance, kind="environment")
        write_json(folder / ENVIRONMENT_FILE, document)
    run = Run(folder, console, provenance, composed.choices, composed.overrides)
    result = task(composed.config, run)
    warned = {"warnings": list(result.warnings)} if result.warnings else {}
    values = {**result.values, **warned, "run_folder": str(folder)}
    written = to_json(stamp(values, result.provenance, kind="result"))
    write_text(folder / RESULT_FILE, written)
    return result, written


def gone_on_with(folder: Path, provenance: Provenance) -> Provenance:
    """Where the files of a resumed run come from: the command that began it and the one of now."""
    path = folder / ENVIRONMENT_FILE
    origin = read_json_object(path).get("provenance") if path.is_file() else None
    if not isinstance(origin, dict):
        return provenance  # of an older version: the app says what it lacks
    command = f"{origin.get('command')} ; {provenance.command}"
    return replace(provenance, command=command, seed=origin.get("seed"))


def without_extra(error: Exception, verb: str) -> InputError | None:
    """The message where a module of an extra is not installed."""
    if not isinstance(error, ImportError | InstantiationException):
        return None
    reason = missing_extra(error)
    return None if reason is None else InputError(f"{verb!r} {reason}")
