"""A posterior in a folder: the same when read again; what is wrong with a folder is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from duration_rows import SMALL, random_rows
from safetensors.torch import load_file, save_file

from envs.errors import InputError
from models.artifacts import sha256_of
from models.durations.folder import SPEC_FILE, WEIGHTS_FILE, load_durations, save_durations
from models.durations.network import DurationPosterior
from models.durations.posterior import edges_s


@pytest.fixture
def posterior() -> DurationPosterior:
    torch.manual_seed(0)
    return DurationPosterior(SMALL).eval()


@pytest.fixture
def folder(posterior: DurationPosterior, tmp_path: Path) -> Path:
    save_durations(posterior, tmp_path / "durations", {"seed": 7})
    return tmp_path / "durations"


def test_what_is_read_predicts_the_same(posterior: DurationPosterior, folder: Path) -> None:
    again = load_durations(folder)
    assert again.config == SMALL
    assert not again.training
    rows = torch.from_numpy(random_rows(0, 20, SMALL.history))
    with torch.no_grad():
        assert torch.equal(again(rows), posterior(rows))


def test_the_spec_says_what_it_is(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {WEIGHTS_FILE, SPEC_FILE}
    spec = json.loads((folder / SPEC_FILE).read_text())
    assert spec["kind"] == "meshwright.durations"
    assert spec["schema_version"] == 1
    assert spec["provenance"] == {"seed": 7}
    assert spec["history"] == 2
    assert len(spec["columns"]) == 9 + 2 * 2 * 4
    assert spec["columns"][9] == "before 1: arrived"
    assert spec["columns"][-1] == "after 2: time between the submissions"
    np.testing.assert_allclose(spec["bins"], edges_s().numpy())
    assert spec["sha256"] == {WEIGHTS_FILE: sha256_of(folder / WEIGHTS_FILE)}


def test_a_folder_is_replaced_whole_or_not_at_all(
    posterior: DurationPosterior, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    torch.manual_seed(1)
    other = DurationPosterior(SMALL)
    with pytest.raises(TypeError):
        save_durations(other, folder, {"not JSON": object()})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["durations"]
    save_durations(other, folder, {})
    assert torch.equal(load_durations(folder).bins.weight, other.bins.weight)


def changed(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(spec: dict[str, Any]) -> None:
        spec[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (changed("kind", "meshwright.policy"), "kind"),
        (changed("schema_version", 2), "schema_version"),
        (changed("sha256", {}), "sha256"),
        (changed("history", 3), "history"),
        (changed("columns", ["log2 of the GPUs / 4"]), "columns"),
        (changed("bins", [1.0, 2.0]), "bins"),
        (changed("config", None), "config"),
        (lambda spec: spec["config"].pop("heads"), "config"),
        (lambda spec: spec["config"].update(depth=2), "config"),
        (lambda spec: spec["config"].update(heads=0), "config.heads"),
        (lambda spec: spec["config"].update(heads="two"), "config"),
        (lambda spec: spec["config"].update(hidden=9), None),
        (lambda spec: spec["config"].update(hidden=8.5), None),
    ],
)
def test_a_spec_that_does_not_hold_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], object], field: str | None
) -> None:
    spec = json.loads((folder / SPEC_FILE).read_text())
    change(spec)
    (folder / SPEC_FILE).write_text(json.dumps(spec))
    with pytest.raises(InputError) as caught:
        load_durations(folder)
    assert caught.value.file == folder / SPEC_FILE
    assert caught.value.field == field


def test_files_that_are_missing_or_damaged_are_refused(folder: Path) -> None:
    tensors = {name: value.clone() for name, value in load_file(folder / WEIGHTS_FILE).items()}
    (folder / WEIGHTS_FILE).write_bytes(b"damaged")
    with pytest.raises(InputError, match="sha256 differs") as caught:
        load_durations(folder)
    assert caught.value.file == folder / WEIGHTS_FILE
    spec = json.loads((folder / SPEC_FILE).read_text())
    spec["sha256"] = {WEIGHTS_FILE: sha256_of(folder / WEIGHTS_FILE)}
    (folder / SPEC_FILE).write_text(json.dumps(spec))
    with pytest.raises(InputError, match="does not fit"):
        load_durations(folder)
    del tensors["bins.bias"]
    save_file(tensors, folder / WEIGHTS_FILE)
    spec["sha256"] = {WEIGHTS_FILE: sha256_of(folder / WEIGHTS_FILE)}
    (folder / SPEC_FILE).write_text(json.dumps(spec))
    with pytest.raises(InputError, match=r"bins\.bias"):
        load_durations(folder)
    (folder / WEIGHTS_FILE).unlink()
    with pytest.raises(InputError, match="missing"):
        load_durations(folder)
    (folder / SPEC_FILE).write_text("[]")
    with pytest.raises(InputError):
        load_durations(folder)
    with pytest.raises(InputError, match="no such file"):
        load_durations(folder / "nowhere")
