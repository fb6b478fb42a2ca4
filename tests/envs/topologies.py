"""The topologies of `conf/topology`, by name."""

from __future__ import annotations

import yaml
from omegaconf import OmegaConf

from envs.hardware.topology import Topology
from experiments.config.targets import build
from tests.paths import CONF

ROWS = OmegaConf.to_container(OmegaConf.load(CONF / "topology/_table.yaml"), resolve=False)
assert isinstance(ROWS, dict)
BUILT = sorted(str(name) for name, row in ROWS.items() if "defaults" not in row)


def topology_named(name: str) -> Topology:
    built = build(ROWS[name])
    assert isinstance(built, Topology)
    return built


def topology_text(name: str) -> str:
    """What describes it, as a file of its own."""
    return yaml.safe_dump(ROWS[name], sort_keys=False)
