from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from envs.errors import InputError
from models.artifacts import sha256_of
from models.export.checkpoint import LISTED_FILES, OnnxRuntime, Pt2Runtime, load_checkpoint
from models.export.exporter import ModelCard, export_policy
from models.step.policy import GraphBatch, PlacementPolicy
from tests.models.random_observations import WIDTHS, padded, policy_config, random_observation
from tests.paths import ROOT

CARD = ModelCard(
    title="A test policy",
    environment="meshwright/Placement-v0",
    bounds=(-1.0, 4.0),
    config_yaml="seed: 0\n",
    command="python -m experiments.evaluate agent=checkpoint",
    evaluation=[{"method": "policy", "step time": "1 s"}, {"method": "heft", "step time": "2 s"}],
    provenance={"seed": 0, "git_commit": "abc"},
)


@pytest.fixture(scope="module")
def policy() -> PlacementPolicy:
    torch.manual_seed(0)
    return PlacementPolicy(policy_config(hidden=64, operator_rounds=2, initial_scale=1.0), WIDTHS)


@pytest.fixture(scope="module")
def folder(policy: PlacementPolicy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_policy(policy, tmp_path_factory.mktemp("export") / "scheduler", CARD)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "scheduler"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def observations() -> list[dict[str, NDArray[Any]]]:
    """Padded as in training, and graphs far larger and as small as can be."""
    rng = np.random.default_rng(0)
    trained = [
        padded(random_observation(rng, int(rng.integers(2, 60)), 100, 4), 64, 256)
        for _ in range(20)
    ]
    sizes = [(300, 1200, 4), (200, 500, 16), (65, 257, 8), (2, 1, 2), (1, 1, 1)]
    return trained + [random_observation(rng, *size) for size in sizes]


def test_eager_pt2_and_onnx_agree_on_logits_and_decisions(
    policy: PlacementPolicy, folder: Path
) -> None:
    checkpoint = load_checkpoint(folder)
    onnx, pt2 = OnnxRuntime(checkpoint), Pt2Runtime(checkpoint)
    for observation in observations():
        with torch.inference_mode():
            eager, value = policy(GraphBatch.stack([observation]))
        for runtime in (onnx, pt2):
            logits, estimate = runtime(observation)
            np.testing.assert_allclose(logits, eager[0].numpy(), atol=1e-5, rtol=0)
            assert estimate == pytest.approx(float(value[0]), abs=1e-5)
            assert logits.argmax() == eager[0].argmax()


def test_the_folder_is_complete_and_described(policy: PlacementPolicy, folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {*LISTED_FILES, "spec.json"}
    spec = load_checkpoint(folder).spec
    assert spec["environment"] == "meshwright/Placement-v0"
    assert spec["model"]["config"]["hidden"] == 64
    assert spec["provenance"] == {"seed": 0, "git_commit": "abc"}
    assert spec["sha256"] == {name: sha256_of(folder / name) for name in LISTED_FILES}
    weights = load_file(folder / "weights.safetensors")
    for name, value in policy.state_dict().items():
        torch.testing.assert_close(weights[name], value, atol=0, rtol=0)
    card = (folder / "README.md").read_text()
    assert "| heft | 2 s |" in card
    assert CARD.command in card
    assert (folder / "config.yaml").read_text() == "seed: 0\n"


def test_no_file_tells_where_it_was_made_and_no_archive_holds_a_pickle(folder: Path) -> None:
    with zipfile.ZipFile(folder / "policy.pt2") as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    assert not [name for name, data in contents.items() if name.endswith((".pt", ".pkl")) and data]
    for data in [*contents.values(), *(path.read_bytes() for path in folder.iterdir())]:
        assert str(ROOT).encode() not in data
        assert b"site-packages" not in data


@pytest.mark.parametrize("name", LISTED_FILES)
def test_a_damaged_file_is_named(copied: Path, name: str) -> None:
    data = bytearray((copied / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copied / name).write_bytes(data)
    with pytest.raises(InputError, match=rf"{name}: the file was changed or damaged"):
        load_checkpoint(copied)


def test_a_missing_file_is_named(copied: Path) -> None:
    (copied / "policy.onnx").unlink()
    with pytest.raises(InputError, match=r"policy\.onnx: .*missing"):
        load_checkpoint(copied)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "other"}, "field 'kind': is 'other'"),
        ({"schema_version": 99}, "field 'schema_version': is 99"),
        ({"sha256": {}}, "field 'sha256': must list policy.onnx"),
        ({"observation": [1]}, "field 'observation'"),
    ],
)
def test_a_foreign_spec_is_named(copied: Path, change: dict[str, Any], message: str) -> None:
    spec = json.loads((copied / "spec.json").read_text())
    (copied / "spec.json").write_text(json.dumps({**spec, **change}))
    with pytest.raises(InputError, match=message):
        load_checkpoint(copied)


def test_a_model_that_is_no_onnx_is_named(copied: Path) -> None:
    (copied / "policy.onnx").write_bytes(b"not a model")
    spec = json.loads((copied / "spec.json").read_text())
    spec["sha256"]["policy.onnx"] = sha256_of(copied / "policy.onnx")
    (copied / "spec.json").write_text(json.dumps(spec))
    with pytest.raises(InputError, match=r"policy\.onnx: not a readable ONNX model"):
        OnnxRuntime(load_checkpoint(copied))


def test_something_else_than_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a checkpoint folder"):
        load_checkpoint(tmp_path / "absent")
    with pytest.raises(InputError, match=r"spec\.json: no such file"):
        load_checkpoint(tmp_path)


def test_a_foreign_observation_is_named(folder: Path) -> None:
    checkpoint = load_checkpoint(folder)
    observation = random_observation(np.random.default_rng(0), 5, 4, 3)
    with pytest.raises(InputError, match="field 'placed': the observation has no such array"):
        checkpoint.arrays({k: v for k, v in observation.items() if k != "placed"})
    with pytest.raises(InputError, match=r"field 'action_mask': the policy takes int8 \('D',\)"):
        checkpoint.arrays({**observation, "action_mask": np.ones(4, np.int8)})
    with pytest.raises(InputError, match="field 'current': the policy takes int64"):
        checkpoint.arrays({**observation, "current": np.zeros(1, np.float32)})


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"ray", "torch_geometric"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocker())
import numpy as np
from functools import partial
from agents.placement.learned import LearnedAgent
from models.export.checkpoint import Pt2Runtime
stored = dict(np.load(sys.argv[2], allow_pickle=False))
count = int(stored.pop("count"))
for agent in (LearnedAgent(sys.argv[1]), LearnedAgent(sys.argv[1], runtime=Pt2Runtime)):
    for i in range(count):
        prefix = f"{i}."
        given = {k[len(prefix):]: v for k, v in stored.items() if k.startswith(prefix)}
        print(int(agent.act(given)))
assert not {"ray", "torch_geometric"} & set(sys.modules)
"""


def test_a_fresh_process_without_ray_and_pyg_decides_identically(
    policy: PlacementPolicy, folder: Path, tmp_path: Path
) -> None:
    seen = observations()
    arrays = {f"{i}.{name}": array for i, o in enumerate(seen) for name, array in o.items()}
    np.savez(tmp_path / "observations.npz", count=np.array(len(seen)), **arrays)
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(folder), str(tmp_path / "observations.npz")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with torch.inference_mode():
        expected = [int(policy(GraphBatch.stack([o]))[0].argmax()) for o in seen]
    assert [int(line) for line in done.stdout.split()] == expected * 2
