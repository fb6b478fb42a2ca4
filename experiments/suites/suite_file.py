"""Anybody's suite, in a YAML file of the form of `conf/suite`."""

from __future__ import annotations

from pathlib import Path

import yaml

from envs.errors import InputError
from experiments.suites.report import Suite
from experiments.targets import build, check_targets


def suite_file(path: str) -> Suite:
    """The suite that a YAML file describes.

    Raises:
        InputError: the file is no such description, or a key or value in it is wrong.
    """
    try:
        node = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read ({' '.join(str(error).split())})", file=path) from error
    if not isinstance(node, dict) or "_target_" not in node:
        raise InputError("is no suite: it has no '_target_'", file=path)
    try:
        check_targets(node, "suite")
        built = build(node)
    except InputError as error:
        raise InputError(str(error), file=path) from error
    if not isinstance(built, Suite):
        raise InputError(f"describes no suite but a {type(built).__name__}", file=path)
    return built
