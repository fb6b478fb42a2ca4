"""Layer profiles of MESHWRIGHT_DATA as cuts, and the oracles made of them."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agents.hybrid.pipedream import Cuts
from envs.graphs.readers.pipedream import PipeDreamReader
from envs.hybrid.states import LayerGraph, antichain_states

DATA = Path(os.environ.get("MESHWRIGHT_DATA", ""))
ORACLES = DATA / "oracles" / "parallel"
needs_oracles = pytest.mark.skipif(
    not ORACLES.is_dir(), reason="needs the oracles of MESHWRIGHT_DATA"
)


def oracle(name: str) -> dict[str, Any]:
    """A file of oracles; nothing without them."""
    path = ORACLES / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


@cache
def profile(name: str, times: float = 1.0) -> Cuts:
    """The antichain states of a profile, `times` its batch."""
    folder = "dapple" if "pbs" in name else "pipedream"
    graph = PipeDreamReader(training=True).read(DATA / "graphs" / folder / name).graph
    return Cuts.of(antichain_states(LayerGraph.of(graph)), times)
