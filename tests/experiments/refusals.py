"""Bad input, refused where it is found: by a command line, by an option of `conf`, by a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import compose
from hydra.utils import get_class
from omegaconf import OmegaConf

from envs.errors import InputError
from experiments.config.composing import check_command_line, hydra_over_configs
from experiments.config.config_source import SHIPPED_CONFIGS
from experiments.config.targets import build, check_targets
from experiments.config.verbs import JOBS
from tests.experiments.commands import Command, code_of

Refuses = Callable[..., str]  # the fixture of this name
TRACE = "job_id,submit_s,duration_s,num_gpus\na,0,10,1\nb,5,10,2\n"
FAULTY = "job_id,submission_time,duration,num_gpu\na,0,10,1\nb,1,-4,1\nc,3,10,2\n"


def refused(deed: Callable[[], object], words: Sequence[str] = ()) -> str:
    """The line that a deed is refused with; it holds all of `words`."""
    with pytest.raises(InputError) as caught:
        deed()
    line = str(caught.value)
    assert "\n" not in line.strip()
    for word in words:
        assert word in line, line
    return line


def command_refused(app: str, arguments: Sequence[str], words: Sequence[str]) -> None:
    """A command line is refused when it is composed, before there is a run."""
    refused(lambda: check_command_line(arguments, app, get_class(JOBS[app].schema)), words)


def option_of(choice: str, *changes: str) -> dict[str, Any]:
    """{group: node} of an option of conf, `group=option`, with `group.key=value` for `changes`."""
    group = choice.partition("=")[0]
    with hydra_over_configs():
        chosen = compose(overrides=[f"+{choice}"])
    placement = SHIPPED_CONFIGS.node("placement/count")
    root = {"seed": 0, "placement": placement, group: chosen[group]}
    changed = OmegaConf.merge(OmegaConf.create(root), OmegaConf.from_dotlist(list(changes)))
    plain = OmegaConf.to_container(changed, resolve=True)
    assert isinstance(plain, dict)
    return {group: plain[group]}


def option_refused(text: str, words: Sequence[str]) -> None:
    """What an option describes is refused by its keys and types, or when it is built."""
    choice, *changes = text.split()
    node = option_of(choice, *changes)
    group = choice.partition("=")[0]

    def make() -> object:
        check_targets(node)
        return build(node[group], group)

    refused(make, words)


def run_refused(
    command: Command,
    arguments: Sequence[str],
    words: Sequence[str],
    folder: Path,
    capfd: pytest.CaptureFixture[str],
) -> str:
    """A run is refused with one line and code 2, and leaves `folder` as it was."""
    before = content_of(folder)
    capfd.readouterr()
    code = code_of(command, *arguments)
    out, err = capfd.readouterr()
    assert code == 2, err
    assert not out, out
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1
    for word in words:
        assert word in err, err
    assert content_of(folder) == before
    return err


def content_of(folder: Path) -> Mapping[Path, bytes]:
    """Every file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_traces(folder: Path) -> None:
    """Files of jobs, one of them at fault."""
    (folder / "jobs.csv").write_text(TRACE)
    (folder / "faulty.csv").write_text(FAULTY)
