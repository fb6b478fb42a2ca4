"""Anybody's suite, in a YAML file of the form of `conf/suite`."""

from __future__ import annotations

from envs.errors import InputError
from experiments.run.targets import object_in_file
from experiments.step.suites.report import Suite


def suite_file(path: str) -> Suite:
    """The suite that a YAML file describes.

    Raises:
        InputError: the file is no such description, or a key or value in it is wrong.
    """
    built = object_in_file(path, "suite")
    if not isinstance(built, Suite):
        raise InputError(f"describes no suite but a {type(built).__name__}", file=path)
    return built
