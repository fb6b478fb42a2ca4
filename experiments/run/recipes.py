"""Recipes of training, `conf/experiment/*.yaml`: what their words on a command line stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files

from omegaconf import OmegaConf

from experiments.run.overrides import CONFIG_MODULE

GROUP = "experiment"


def written_out(arguments: Sequence[str]) -> list[str]:
    """The words of a command line; before them `group=option` of every recipe that it names.

    A recipe that is not there has none: composing the config tells.
    """
    named = [argument.partition("=")[2] for argument in arguments if _names_a_recipe(argument)]
    return [*(word for name in named for word in _choices(name)), *arguments]


def _names_a_recipe(argument: str) -> bool:
    return argument.lstrip("+").startswith(f"{GROUP}=")


def _choices(name: str) -> Iterator[str]:
    """`group=option` of the groups that a recipe overrides; those of the recipes in it first."""
    file = files(CONFIG_MODULE).joinpath(GROUP, f"{name}.yaml")
    if not file.is_file():
        return
    recipe = OmegaConf.to_container(OmegaConf.create(file.read_text(encoding="utf-8")))
    defaults = recipe.get("defaults", []) if isinstance(recipe, dict) else []
    for item in defaults:
        if isinstance(item, str):
            yield from _choices(item)
        else:
            for group, option in item.items():
                if group.startswith("override /"):
                    yield f"{group.removeprefix('override /')}={option}"
