from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces

from agents.rllib import restore as restore_file
from agents.rllib.restore import KEPT, has_checkpoint, load_best, restore, save, save_best
from envs.files import read_json
from models.architecture import Policy
from tests.agents.rllib.toys import CHOICES, SPACE, Linear
from tests.refusal import refusal

IDENTITY = {"seed": 0, "ppo": {"discounting": (0.5, 0.9)}}
STATE = {"progress": {"iteration": 3, "best": float("inf")}, "scales": [1.5, None]}
FILES: dict[str, dict[str, torch.Tensor]] = {
    "weights": {"a/actor": torch.arange(6.0).reshape(2, 3).T, "b/steps": torch.tensor(3)},
    "reference": {},
}


def folders(run_folder: Path) -> list[str]:
    return sorted(path.name for path in (run_folder / "checkpoints").iterdir())


def test_what_is_saved_is_restored_and_the_last_are_kept(tmp_path: Path) -> None:
    assert not has_checkpoint(tmp_path)
    with refusal("checkpoints: holds no checkpoint to resume from"):
        restore(tmp_path, IDENTITY)
    for iteration in (8, 9, 10, 1_000_000):
        save(tmp_path, iteration, {**STATE, "iteration": iteration}, FILES, IDENTITY)
    assert has_checkpoint(tmp_path)
    assert folders(tmp_path) == ["iteration_000010", "iteration_1000000"]
    assert KEPT == 2
    state, files = restore(tmp_path, IDENTITY)
    assert state == {**STATE, "iteration": 1_000_000}
    assert set(files) == set(FILES)
    for name, tensors in FILES.items():
        torch.testing.assert_close(dict(files[name]), tensors, rtol=0, atol=0)


@pytest.mark.parametrize("iteration", [1, 2])
def test_a_checkpoint_is_written_whole_or_not_at_all(
    iteration: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, STATE, FILES, IDENTITY)
    written, real = [], restore_file.save_file

    def full(tensors: Any, path: Path) -> None:
        if written:
            raise OSError("No space left on device")
        written.append(path)
        real(tensors, path)

    monkeypatch.setattr(restore_file, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, iteration, {}, FILES, IDENTITY)
    assert folders(tmp_path) == ["iteration_000001"]
    (tmp_path / "checkpoints" / ".iteration_000003.abc").mkdir()  # of a run that was killed
    assert restore(tmp_path, IDENTITY)[0] == STATE


@pytest.mark.parametrize("name", ["weights.safetensors", "reference.safetensors"])
@pytest.mark.parametrize("missing", [False, True])
def test_a_damaged_file_is_named(name: str, missing: bool, tmp_path: Path) -> None:
    path = save(tmp_path, 1, STATE, FILES, IDENTITY) / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink() if missing else path.write_bytes(content)
    message = "it is missing" if missing else "the file was changed or damaged"
    with refusal(rf"{name}: .*{message}"):
        restore(tmp_path, IDENTITY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, r"state\.json: .*is not JSON"),
        ({"schema_version": 0}, "field 'schema_version': is 0, this version reads"),
        ({"state": None}, "field 'state': is missing"),
        ({"sha256": None}, "field 'sha256': is missing"),
        ({"identity": {**IDENTITY, "seed": 3}}, "field 'seed': .*written with 3, this run has 0"),
        ({"identity": {}}, "field 'seed': the checkpoint was written with None"),
    ],
)
def test_a_state_that_is_not_this_runs_is_refused(
    change: dict[str, Any] | None, message: str, tmp_path: Path
) -> None:
    path = save(tmp_path, 1, STATE, FILES, IDENTITY) / "state.json"
    path.write_text("{" if change is None else json.dumps({**read_json(path), **change}))
    with refusal(message):
        restore(tmp_path, IDENTITY)


def fresh(*names: str) -> tuple[dict[str, Policy], dict[str, torch.Tensor]]:
    """Policies and their weights."""
    policies = {name: Linear().policy(SPACE, spaces.Discrete(CHOICES)) for name in names}
    return policies, {
        f"{name}/{key}": value
        for name, policy in policies.items()
        for key, value in policy.state_dict().items()
    }


def test_the_best_policies_are_those_saved_last(tmp_path: Path) -> None:
    loaded, weights = fresh("a", "b")
    with refusal(r"score\.json: no such file"):
        load_best(tmp_path, loaded)
    for score in (1.5, 1.2):
        best = fresh("a", "b")[1]
        save_best(tmp_path, best, {"score": score})
    load_best(tmp_path, loaded)
    torch.testing.assert_close(weights, best, rtol=0, atol=0)
    path = tmp_path / "best"
    assert read_json(path / "score.json")["score"] == 1.2
    assert list(tmp_path.iterdir()) == [path]
    with refusal(r"weights\.safetensors: .*Missing key"):
        load_best(tmp_path, fresh("a", "b", "c")[0])
    (path / "weights.safetensors").write_bytes(b"damaged")
    with refusal(r"weights\.safetensors: the file was changed or damaged"):
        load_best(tmp_path, loaded)
