"""Names, signatures and the configs made of them, beside what Python says of the classes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
from hydra import compose
from hydra.utils import get_object
from omegaconf import OmegaConf

from envs.errors import InputError
from experiments.config import registry
from experiments.config.composing import check_command_line, composed_words, hydra_over_configs
from experiments.config.config_source import SCHEME, SHIPPED, CompletedConfigs, options
from experiments.config.registry import GROUPS, dotted
from experiments.config.signatures import NOTHING, described, knobs
from experiments.config.targets import build
from experiments.config.verbs import JOBS
from experiments.config.yaml_files import parts_of
from tests.paths import CONF

EMPTY = {  # what one has to give stands empty in the config
    "train_allocation": "'splits'",
    "train_gains": "'splits'",
    "train_interference": "'measurements'",
}
ROWS = [(group, name) for group, names in GROUPS.items() for name in names]


def targets(node: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every `_target_` in a plain config, with its mapping."""
    mappings = (part for _, part in parts_of(node) if isinstance(part, Mapping))
    return ((str(part["_target_"]), part) for part in mappings if "_target_" in part)


def agree(read: Any, said: Any) -> bool:
    """Whether a default that was read is Python's, of objects whether there is any."""
    if said is None or isinstance(said, bool | int | float | str):
        return bool(read == said)
    if isinstance(said, Mapping):
        return list(read) == list(said) and all(agree(read[key], said[key]) for key in said)
    if isinstance(said, tuple | list):
        return len(read) == len(said) and all(map(agree, read, said))
    return True


@pytest.mark.parametrize(("group", "name"), ROWS)
def test_what_is_read_is_what_python_says(group: str, name: str) -> None:
    """The source of a class, read without importing it, has the arguments and defaults it has."""
    for target, _ in targets(described(dotted(GROUPS[group][name]))):
        said = inspect.signature(get_object(target)).parameters
        kinds = {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
        named = {key: one for key, one in said.items() if one.kind not in kinds}
        read = {knob.name: knob for knob in knobs(target) or ()}
        assert set(named) <= set(read)
        if len(named) == len(said):
            assert list(named) == list(read)
        for key, one in named.items():
            assert read[key].required == (one.default is inspect.Parameter.empty)
            if NOTHING not in (read[key].default, one.default) and not read[key].required:
                assert agree(read[key].default, one.default), key


@pytest.mark.parametrize(("group", "name"), ROWS)
def test_every_knob_has_a_word_of_help(group: str, name: str) -> None:
    target = dotted(GROUPS[group][name])
    silent = [knob.name for knob in knobs(target) or () if not knob.help and knob.name != "name"]
    assert not silent, f"{target} says nothing of {silent}"


@pytest.mark.parametrize(("group", "name"), ROWS)
def test_a_seed_reaches_every_class_that_takes_one(group: str, name: str) -> None:
    node = CompletedConfigs("test", f"{SCHEME}://{SHIPPED}").node(f"{group}/{name}")
    config = OmegaConf.create({"seed": 1, "placement": None, "trace": {}, "chosen": node})
    for target, inner in targets(OmegaConf.to_container(config, resolve=True)["chosen"]):  # type: ignore[call-overload,index]
        if any(knob.name == "seed" for knob in knobs(target) or ()):
            assert inner["seed"] == 1, target


def test_a_name_takes_one_row_and_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {**GROUPS, "agent": {**GROUPS["agent"], "mine": "agents.cluster.queue:LAS2D"}}
    monkeypatch.setattr(registry, "GROUPS", rows)
    monkeypatch.setattr("experiments.config.config_source.GROUPS", rows)
    config = composed_words(["+agent@agents.mine=mine", "agents.mine.limits=[10]"], "compare")
    mine = OmegaConf.to_container(config.agents.mine, resolve=True)
    assert isinstance(mine, dict)
    assert mine["limits"] == [10]
    policy = build({str(key): value for key, value in mine.items()}, "agents.mine")
    assert (policy.name, policy.seed, policy.placement.name) == ("las_2d", 0, "best_fit")


def test_a_name_has_a_row_or_a_file() -> None:
    for group, name in ROWS:
        assert not (CONF / group / f"{name}.yaml").exists(), (group, name)
        assert name in options(group)


@pytest.mark.parametrize("config", JOBS)
def test_every_job_composes_and_fits_its_dataclass(config: str) -> None:
    with hydra_over_configs():
        whole = compose(config)
    if OmegaConf.missing_keys(whole):
        return
    with pytest.raises(InputError) if config in EMPTY else nullcontext() as refused:
        assert check_command_line([], config, get_object(JOBS[config].schema)).config
    assert refused is None or EMPTY[config] in str(refused.value)
