from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cluster_observations import CONFIG, Observation, Sizes, padded_cluster, random_cluster
from numpy.random import default_rng
from safetensors.torch import load_file

from envs.files import read_json
from experiments.learning.replay import Pt2Runtime
from models.artifacts import sha256_of
from models.cluster.hierarchical import HierarchicalPolicy
from models.export.checkpoint import (
    CLUSTER,
    LISTED_FILES,
    ModelCard,
    OnnxRuntime,
    load_checkpoint,
)
from models.export.exporter import export_scheduler
from tests.paths import ROOT
from tests.refusal import refusal

pytestmark = pytest.mark.slow

CARD = ModelCard("A test policy", "It was never trained.", "seed: 0\n", {"seed": 0})
SHORT = replace(CONFIG, rounds=1)
FORMS = {
    "several": (SHORT, Sizes(peers=2, state=5)),
    "alone and flat": (replace(SHORT, hierarchy=False), Sizes(types=1, preemption=False)),
}
CLUSTERS: tuple[dict[str, Any], ...] = (
    {},
    {"servers": 1, "racks": 1, "running": 1, "pending": 1, "shares": 1},
    {"servers": 60, "racks": 9, "running": 120, "pending": 30, "shares": 150},
    {"servers": 4, "racks": 2, "running": 30, "pending": 1, "shares": 31},
)

Exported = tuple[HierarchicalPolicy, Sizes, Path]


@pytest.fixture(
    scope="module",
    params=["several", pytest.param("alone and flat", marks=pytest.mark.proof)],
)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    config, sizes = FORMS[request.param]
    torch.manual_seed(0)
    policy = config.policy(*sizes.spaces())
    folder = tmp_path_factory.mktemp("export") / "scheduler"
    return policy, sizes, export_scheduler(policy, folder, CARD)


def observations(sizes: Sizes) -> list[Observation]:
    """As large as can be or as small, with padding and without, with other schedulers and none."""
    rng = default_rng(0)
    out = []
    for change in CLUSTERS:
        for peers in {0, sizes.peers, sizes.peers and 1}:
            some = replace(sizes, **change, peers=peers, state=0)
            out.append(random_cluster(rng, some))
            more: dict[str, Any] = {"servers": some.servers + 3, "racks": some.racks + 1}
            more |= {"running": some.running + 4, "pending": some.pending + 2, "shares": 200}
            out.append(padded_cluster(out[-1], some, replace(some, **more)))
    return out


def test_eager_pt2_and_onnx_agree(exported: Exported) -> None:
    policy, sizes, folder = exported
    checkpoint = load_checkpoint(folder)
    runtimes = (OnnxRuntime(checkpoint), Pt2Runtime(checkpoint))
    for seen in observations(sizes):
        batch = {name: torch.from_numpy(array[None]) for name, array in seen.items()}
        with torch.inference_mode():
            eager, value = policy.decide(batch)
        for runtime in runtimes:
            logits, estimate = runtime(seen)
            np.testing.assert_allclose(logits, eager[0].numpy(), atol=1e-5, rtol=0)
            assert estimate == pytest.approx(float(value[0]), abs=1e-5)
            assert logits.argmax() == eager[0].argmax()


def test_the_folder_is_complete_and_described(
    exported: Exported,
) -> None:
    policy, sizes, folder = exported
    assert {path.name for path in folder.iterdir()} == {*LISTED_FILES, "spec.json"}
    checkpoint = load_checkpoint(folder)
    spec = checkpoint.spec
    assert spec["observation_kind"] == CLUSTER
    assert spec["model"]["config"]["hidden"] == 16
    assert spec["model"]["widths"]["peer"] == (10 if sizes.peers else 0)
    assert spec["action"]["preemption"] == sizes.preemption
    assert spec["action"]["outputs"][0]["shape"] == ["A"]
    assert set(spec["sizes"]) == set("NRMWEA") | ({"F"} if sizes.peers else set())
    assert spec["sha256"] == {name: sha256_of(folder / name) for name in LISTED_FILES}
    weights = load_file(folder / "weights.safetensors")
    fresh = policy.config.policy(*sizes.spaces())
    fresh.load_state_dict(weights)
    for name, value in policy.state_dict().items():
        torch.testing.assert_close(fresh.state_dict()[name], value, atol=0, rtol=0)
    assert "cluster's scheduler" in (folder / "README.md").read_text()


def test_no_file_tells_where_it_was_made_and_no_archive_holds_a_pickle(
    exported: Exported,
) -> None:
    folder = exported[2]
    with zipfile.ZipFile(folder / "policy.pt2") as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    assert not [name for name, data in contents.items() if name.endswith((".pt", ".pkl")) and data]
    for data in [*contents.values(), *(path.read_bytes() for path in folder.iterdir())]:
        assert str(ROOT).encode() not in data
        assert b"site-packages" not in data


def test_a_foreign_observation_is_named(exported: Exported) -> None:
    _, sizes, folder = exported
    checkpoint = load_checkpoint(folder)
    seen = random_cluster(default_rng(0), replace(sizes, state=0))
    with refusal("field 'rack_mask': the observation has no such array"):
        checkpoint.arrays({name: seen[name] for name in seen if name != "rack_mask"})
    for name, part, expected in (
        ("running_features", np.s_[:, 1:], "takes float32"),
        ("action_mask", np.s_[1:], "gives .* logits"),
        ("server_mask", np.s_[1:], "takes int8"),
    ):
        with refusal(f"field '{name}': the policy {expected}"):
            checkpoint.arrays({**seen, name: seen[name][part]})


@pytest.fixture
def copied(exported: Exported, tmp_path: Path) -> Path:
    shutil.copytree(exported[2], tmp_path, dirs_exist_ok=True)
    return tmp_path


def rewrite(folder: Path, **change: Any) -> None:
    """Other values in the spec."""
    (folder / "spec.json").write_text(json.dumps({**read_json(folder / "spec.json"), **change}))


@pytest.mark.parametrize("name", LISTED_FILES)
def test_a_damaged_file_is_named(copied: Path, name: str) -> None:
    data = bytearray((copied / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copied / name).write_bytes(data)
    with refusal(rf"{name}: the file was changed or damaged"):
        load_checkpoint(copied)


def test_a_missing_file_is_named(copied: Path) -> None:
    (copied / "policy.onnx").unlink()
    with refusal(r"policy\.onnx: .*missing"):
        load_checkpoint(copied)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "other"}, "field 'kind': is 'other'"),
        ({"schema_version": 99}, "field 'schema_version': is 99"),
        ({"sha256": {}}, "field 'sha256': must list policy.onnx"),
        ({"observation": [1]}, "field 'observation'"),
        ({"observation_kind": None}, "'observation_kind': is of kind None, not 'cluster'"),
    ],
)
def test_a_foreign_spec_is_named(copied: Path, change: dict[str, Any], message: str) -> None:
    rewrite(copied, **change)
    with refusal(message):
        load_checkpoint(copied)


def test_a_model_that_is_no_onnx_is_named(copied: Path) -> None:
    (copied / "policy.onnx").write_bytes(b"not a model")
    rewrite(copied, sha256={name: sha256_of(copied / name) for name in LISTED_FILES})
    with refusal(r"policy\.onnx: not a readable ONNX model"):
        OnnxRuntime(load_checkpoint(copied))


def test_something_else_than_a_folder_is_named(tmp_path: Path) -> None:
    with refusal("is not a checkpoint folder: no such folder"):
        load_checkpoint(tmp_path / "absent")
    with refusal(r"spec\.json: no such file"):
        load_checkpoint(tmp_path)


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"ray", "torch_geometric", "torch"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocker())
import numpy as np
from models.export.checkpoint import OnnxRuntime, load_checkpoint
seen = dict(np.load(sys.argv[2], allow_pickle=False))
logits, _ = OnnxRuntime(load_checkpoint(sys.argv[1]))(seen)
print(int(logits.argmax()))
"""


def test_a_fresh_process_without_ray_pyg_and_torch_decides_identically(
    exported: Exported, tmp_path: Path
) -> None:
    policy, sizes, folder = exported
    seen = random_cluster(default_rng(3), replace(sizes, state=0))
    np.savez(tmp_path / "seen.npz", **seen)  # type: ignore[arg-type]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(folder), str(tmp_path / "seen.npz")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with torch.inference_mode():
        logits, _ = policy.decide({name: torch.from_numpy(a[None]) for name, a in seen.items()})
    assert int(done.stdout) == int(logits.argmax())
