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
FILES = {
    "weights": {"a/actor": torch.arange(6.0).reshape(2, 3).T, "b/steps": torch.tensor(3)},
    "reference": {},
}


def folders(run_folder: Path) -> list[str]:
    return sorted(path.name for path in (run_folder / "checkpoints").iterdir())


def test_what_is_saved_is_restored(tmp_path: Path) -> None:
    assert not has_checkpoint(tmp_path)
    save(tmp_path, 3, STATE, FILES, IDENTITY)
    assert has_checkpoint(tmp_path)
    state, files = restore(tmp_path, IDENTITY)
    assert state == STATE
    assert {name: set(tensors) for name, tensors in files.items()} == {
        name: set(tensors) for name, tensors in FILES.items()
    }
    for name, tensor in FILES["weights"].items():
        assert torch.equal(files["weights"][name], tensor)


def test_the_last_checkpoints_are_kept_and_the_newest_is_read(tmp_path: Path) -> None:
    for iteration in (8, 9, 10, 1_000_000):
        save(tmp_path, iteration, {"iteration": iteration}, FILES, IDENTITY)
    assert folders(tmp_path) == ["iteration_000010", "iteration_1000000"]
    assert len(folders(tmp_path)) == KEPT
    assert restore(tmp_path, IDENTITY)[0] == {"iteration": 1_000_000}


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
    folder = save(tmp_path, 1, STATE, FILES, IDENTITY)
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).unlink() if missing else (folder / name).write_bytes(content)
    message = "it is missing" if missing else "the file was changed or damaged"
    with refusal(rf"{name}: .*{message}"):
        restore(tmp_path, IDENTITY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 0}, "field 'schema_version': is 0, this version reads"),
        ({"state": None}, "field 'state': is missing"),
        ({"sha256": None}, "field 'sha256': is missing"),
        ({"identity": {**IDENTITY, "seed": 3}}, "field 'seed': .*written with 3, this run has 0"),
        ({"identity": {}}, "field 'seed': the checkpoint was written with None"),
    ],
)
def test_a_state_that_is_not_this_runs_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = save(tmp_path, 1, STATE, FILES, IDENTITY) / "state.json"
    path.write_text(json.dumps({**read_json(path), **change}))
    with refusal(message):
        restore(tmp_path, IDENTITY)


def test_an_unreadable_state_and_no_state_are_told(tmp_path: Path) -> None:
    with refusal("checkpoints: holds no checkpoint to resume from"):
        restore(tmp_path, IDENTITY)
    path = save(tmp_path, 1, STATE, FILES, IDENTITY) / "state.json"
    path.write_text("{")
    with refusal(r"state\.json: .*is not JSON"):
        restore(tmp_path, IDENTITY)


def fresh() -> dict[str, Policy]:
    space = spaces.Discrete(CHOICES)
    return {"a": Linear().policy(SPACE, space), "b": Linear().policy(SPACE, space)}


def weights_of(policies: dict[str, Policy]) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{key}": value
        for name, policy in policies.items()
        for key, value in policy.state_dict().items()
    }


def test_the_best_policies_are_those_saved_last(tmp_path: Path) -> None:
    with refusal(r"score\.json: no such file"):
        load_best(tmp_path, fresh())
    for score in (1.5, 1.2):
        best = fresh()
        save_best(tmp_path, weights_of(best), {"score": score})
    loaded = fresh()
    load_best(tmp_path, loaded)
    for name, value in weights_of(best).items():
        assert torch.equal(value, weights_of(loaded)[name])
    assert read_json(tmp_path / "best/score.json")["score"] == 1.2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best"]


def test_best_weights_that_do_not_fit_or_were_changed_are_refused(tmp_path: Path) -> None:
    save_best(tmp_path, weights_of({"a": fresh()["a"]}), {"score": 1.0})
    with refusal(r"weights\.safetensors: .*Missing key"):
        load_best(tmp_path, fresh())
    path = tmp_path / "best" / "weights.safetensors"
    path.write_bytes(b"damaged")
    with refusal(r"weights\.safetensors: the file was changed or damaged"):
        load_best(tmp_path, fresh())
