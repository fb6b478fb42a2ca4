from __future__ import annotations

from pathlib import Path

import pytest

from models.artifacts import atomic_folder, check_hashes, hashes_of, read_json_object
from tests.refusal import refusal


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "made" / "folder") as temporary:
        (temporary / "a").write_text("1")
        assert not (tmp_path / "made" / "folder").exists()
    assert (tmp_path / "made" / "folder" / "a").read_text() == "1"
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["folder"]


def test_every_file_of_a_folder_may_be_read_by_all(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "made") as folder:
        (folder / "secret").touch(mode=0o600)
    assert (tmp_path / "made" / "secret").stat().st_mode & 0o777 == 0o644


def test_a_failure_leaves_nothing_new_and_nothing_lost(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with atomic_folder(folder) as temporary:
        (temporary / "a").write_text("old")

    def fail() -> None:
        with atomic_folder(folder) as temporary:
            (temporary / "a").write_text("new")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fail()
    assert (folder / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_folder_is_replaced(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with atomic_folder(tmp_path / "folder") as temporary:
            (temporary / name).write_text(name)
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["b"]


def test_a_changed_or_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    hashes = hashes_of(tmp_path)
    check_hashes(tmp_path, hashes)
    (tmp_path / "a").write_text("2")
    with refusal(r"a: the file was changed or damaged"):
        check_hashes(tmp_path, hashes)
    (tmp_path / "a").unlink()
    with refusal(r"a: the checkpoint lists this file, but it is missing"):
        check_hashes(tmp_path, hashes)


def test_a_listed_path_outside_the_folder_is_refused(tmp_path: Path) -> None:
    with refusal("missing"):
        check_hashes(tmp_path, {"../a": "0"})


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[1]", "holds a list, not an object")]
)
def test_bad_json_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with refusal(message):
        read_json_object(tmp_path / "x.json")
    (tmp_path / "run/checkpoint").mkdir(parents=True)
    (tmp_path / "run/checkpoint/spec.json").write_text("{}")
    with refusal(r"no checkpoint in .*/run: .*in .*/run/checkpoint there"):
        read_json_object(tmp_path / "run/spec.json")
