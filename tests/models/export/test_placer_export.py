"""A placement policy in its folder plans as it did in memory, in a process that has no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from envs.placement import sweeps
from models.export.checkpoint import ModelCard
from models.export.placer import OnnxPlacer, export_placer, trained_placer
from models.step.decoding import Network, compose, views_of
from models.step.placer import PlacerPolicy, PresentNetwork
from tests.envs.placement.test_sweeps import drawn
from tests.models.step.test_placer import SEQUENTIAL, policy_of
from tests.paths import ROOT
from tests.refusal import refusal

KINDS = ("sequential", "parallel")
CARD = ModelCard("A policy", "It was never trained.", "seed: 0\n", {"seed": 0})


@pytest.fixture(scope="module")
def policy() -> PlacerPolicy:
    return policy_of(replace(SEQUENTIAL, rounds=1, sweeps=KINDS))


@pytest.fixture(scope="module")
def folder(policy: PlacerPolicy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_placer(policy, tmp_path_factory.mktemp("placer") / "folder", CARD)


def plans(network: Network) -> list[list[int]]:
    found = []
    for seed in range(4):
        facts = drawn(seed)
        encoded, heat = network.encode(views_of([facts])), np.array([0.0, 1.0, 1.0])
        random, problem = np.random.default_rng(seed), np.zeros(3, np.int64)
        given, start = sweeps.boards([facts]), np.array([0, 4, 9])
        stands = facts.starts[start]
        made = compose(network, encoded, given, problem, start, stands, KINDS, heat, random)
        found += made.actions.tolist()
    return found


BLOCKED = """
import json, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"ray", "torch_geometric", "torch"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocker())
sys.path.insert(0, sys.argv[2])
import agents.placement.policy
from envs.placement.whole import PlacementFacts
from models.export.placer import OnnxPlacer
from models.step.decoding import views_of
import numpy as np
network = OnnxPlacer(sys.argv[1])
stored = dict(np.load(sys.argv[3], allow_pickle=False))
print(json.dumps(network.score(*(stored[k] for k in ("nodes", "devices", "mask", "x"))).tolist()))
"""


def test_it_plans_as_in_memory(policy: PlacerPolicy, folder: Path) -> None:
    assert plans(OnnxPlacer(folder)) == plans(PresentNetwork(policy))
    assert OnnxPlacer(folder).sweeps == list(KINDS)


def test_a_process_without_torch_scores_the_same(
    policy: PlacerPolicy, folder: Path, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    given = {
        "nodes": random.normal(size=(3, 16)).astype(np.float32),
        "devices": random.normal(size=(3, 6, 16)).astype(np.float32),
        "mask": np.ones((3, 6), np.bool_),
        "x": random.normal(size=(3, 6, 26)).astype(np.float32),
    }
    np.savez(tmp_path / "given.npz", **given)  # type: ignore[arg-type]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(folder), str(ROOT), str(tmp_path / "given.npz")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = PresentNetwork(policy).score(**given)
    np.testing.assert_allclose(json.loads(done.stdout), expected, atol=1e-5)


def test_the_weights_come_back(policy: PlacerPolicy, folder: Path) -> None:
    found = trained_placer(folder)
    assert replace(found.config, sweeps=tuple(found.config.sweeps)) == policy.config
    for name, value in policy.state_dict().items():
        assert (found.state_dict()[name] == value).all()


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("head.onnx", b"x", "its sha256 differs"),
        ("spec.json", ('"kind": "meshwright.placer"', '"kind": "other"'), "field 'kind'"),
        ("spec.json", ('"candidate": 26', '"candidate": 25'), "field 'widths'"),
        ("spec.json", ('"sequential"', '"sideways"'), "field 'sweeps'"),
        ("spec.json", ('"sequential"', "[]"), "field 'sweeps'"),
    ],
)
def test_a_damaged_or_foreign_folder_is_named(
    file: str, change: bytes | tuple[str, str], message: str, folder: Path, tmp_path: Path
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if isinstance(change, bytes):
        (tmp_path / file).write_bytes(change)
    else:
        text = (tmp_path / file).read_text(encoding="utf-8").replace(*change)
        (tmp_path / file).write_text(text, encoding="utf-8")
    with refusal(message):
        OnnxPlacer(tmp_path)
