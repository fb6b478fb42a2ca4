"""What all apps share: composition, the run folder, `result.json`, exit codes."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, TextIO, TypeVar

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from envs.errors import InputError
from experiments.run.artifacts import to_json, to_yaml, write_json, write_text
from experiments.run.overrides import (
    CONFIG_FILE,
    CONFIG_MODULE,
    check_command_line,
    claim_folder,
    plain_config,
    typed,
)
from experiments.run.provenance import Provenance, command_line, package_versions, stamp

ENVIRONMENT_FILE, RESULT_FILE = "environment.json", "result.json"
HELP_FLAGS = ("--help", "-h")
FLAGS = (*HELP_FLAGS, "--hydra-help", "--version", "--cfg", "-c", "--resolve", "--info", "-i")
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


class AppConfig(Protocol):
    """What the config of every app holds."""

    seed: int
    json: bool


Config = TypeVar("Config", bound=AppConfig)


@dataclass(frozen=True)
class Run:
    """One run of an app: where it writes, what it prints on, and its provenance.

    `choices` maps each config group to the option that was chosen; `overrides` is the command
    line in Hydra's terms.
    """

    folder: Path
    console: Console
    provenance: Provenance
    choices: Mapping[str, str]
    overrides: Sequence[str]

    def choice(self, group: str, node: Mapping[str, object]) -> str:
        """The option chosen for `group`; the `_target_` of its `node` where there is no option."""
        return self.choices.get(group) or str(node.get("_target_"))


@dataclass(frozen=True)
class Result:
    """What an app found: `values` go to `result.json`, with `provenance` over the inputs.

    `shown` are the keys printed at the end of a run without `json=true`; None: every scalar.
    """

    values: Mapping[str, object]
    provenance: Provenance
    shown: Sequence[str] | None = None


def run_app(
    config_name: str,
    schema: type[Config],
    task: Callable[[Config, Run], Result],
    arguments: list[str] | None = None,
) -> int:
    """Run `task` under Hydra with the config `conf/<config_name>.yaml`; returns the exit code.

    The run folder receives `config.yaml` (resolved), `environment.json` (package versions,
    machine) and `result.json`. With `json=true` the content of `result.json` is all that reaches
    standard output; everything else, whoever prints it, reaches standard error.

    Exit codes: 0; 2 for bad input, or too large for the memory, told in one line; 130 when
    interrupted.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    command = command_line()
    flags = [argument for argument in arguments if argument.startswith("-")]
    failure: list[InputError] = []
    try:
        overrides = [argument for argument in arguments if argument not in flags]
        for flag in flags:
            if flag.partition("=")[0] not in FLAGS:
                raise InputError(f"unknown option {flag!r} (known: {', '.join(FLAGS)})")
        if set(flags) & set(HELP_FLAGS):
            _print_help(config_name, task)
        elif flags:
            given = [argument for argument in overrides if "=" in argument]
            asked = [argument for argument in overrides if "=" not in argument]
            overrides = [*asked, *check_command_line(given, config_name, schema)[0]]
        stdout = sys.stdout
        if not flags:
            overrides, config = check_command_line(overrides, config_name, schema)
            claim_folder(overrides, config_name)
            stdout = _claim_stdout() if config.json else sys.stdout

        def job(composed: DictConfig) -> None:
            folder = Path(HydraConfig.get().runtime.output_dir)
            resumed = (folder / CONFIG_FILE).exists()
            try:
                config = typed(composed, schema)
                provenance = Provenance(seed=config.seed, command=command)
                _run(config, folder, task, stdout, provenance, resumed)
            except (InputError, MemoryError) as error:
                if not resumed:
                    _discard(folder)
                failure.append(error if isinstance(error, InputError) else _too_large(error))

        sys.argv[1:] = [*flags, *overrides]
        hydra.main(
            config_path=f"pkg://{CONFIG_MODULE}", config_name=config_name, version_base="1.3"
        )(job)()
        if failure:
            raise failure[0]
    except InputError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has seen enough, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_INTERRUPTED
    return 0


def _too_large(error: MemoryError) -> InputError:
    cause = " ".join(str(error).split()) or "out of memory"
    return InputError(f"the input is too large for this machine's memory ({cause})")


def _run(
    config: Config,
    folder: Path,
    task: Callable[[Config, Run], Result],
    stdout: TextIO,
    provenance: Provenance,
    resumed: bool,
) -> None:
    console = Console(stderr=config.json)
    if not resumed:
        environment = stamp(_environment(), provenance, kind="environment")
        write_text(folder / CONFIG_FILE, to_yaml(plain_config(config), provenance))
        write_json(folder / ENVIRONMENT_FILE, environment)
    hydra_config = HydraConfig.get()
    choices = {str(key): str(value) for key, value in hydra_config.runtime.choices.items()}
    overrides = [str(override) for override in hydra_config.overrides.task]
    result = task(config, Run(folder, console, provenance, choices, overrides))
    document = stamp({**result.values, "run_folder": str(folder)}, result.provenance, kind="result")
    text = to_json(document)
    write_text(folder / RESULT_FILE, text)
    if config.json:
        stdout.write(text)
        stdout.flush()
    else:
        keys = result.values if result.shown is None else result.shown
        _print_values(console, {key: result.values[key] for key in keys})
        console.print(f"run folder: {folder}", soft_wrap=True)


def _print_values(console: Console, values: Mapping[str, object]) -> None:
    table = Table(show_header=False, box=None)
    for key, value in values.items():
        if isinstance(value, str | int | float | bool) and value != "":
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
            table.add_row(key, shown)
    if table.row_count:
        console.print(table)


def _print_help(config_name: str, task: Callable[..., Result]) -> None:
    """What stands above Hydra's own help, the groups and the config."""
    print((sys.modules[task.__module__].__doc__ or "").strip())
    print(
        f"\nconf/{config_name}.yaml and conf/<group>/<option>.yaml say what every key means.\n"
        "json=true prints result.json, and nothing else, on standard output.\n"
    )


def _environment() -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor_cores": os.cpu_count(),
        "packages": package_versions(),
    }


def _claim_stdout() -> TextIO:
    """Standard output for the result alone: file descriptor 1 becomes standard error for good."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(kept, "w", encoding="utf-8")


def _discard(folder: Path) -> None:
    """Take back what a run that was refused has written; work of its own stays."""
    for name in (CONFIG_FILE, ENVIRONMENT_FILE):
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _run_folder(name: str, resume: str | None = None) -> str:
    """`outputs/<app>/<date-time>`, or the folder of the run that is taken up again."""
    return f"outputs/{name}/{_STARTED}" if resume is None else resume


_STARTED = f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
OmegaConf.register_new_resolver("run_folder", _run_folder, replace=True)
