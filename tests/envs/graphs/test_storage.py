"""Graph files: round trips, hashes, and what is said about damaged ones."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from envs.errors import InputError
from envs.files import read_json
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import Kind, OpGraph, Phase
from envs.graphs.readers import read_graph_file
from envs.graphs.storage import (
    FLOAT_COLUMNS,
    INT_COLUMNS,
    TABLE_COLUMNS,
    TEXT_COLUMNS,
    graph_document,
    graph_hash,
    graph_of,
    load_graph,
    save_graph,
)
from envs.graphs.synthetic import synthetic_training_graph
from envs.units import DTYPES
from tests.refusal import refusal
from tests.strength import examples

SUFFIXES = (".npz", ".json", ".json.gz")


def small_graph(name: str = "small") -> OpGraph:
    """Every column non-trivial, with tables, an unsupported device and a tensor nobody reads."""
    builder = GraphBuilder(name, profile_classes=("cpu", "gpu"), link_classes=("same", "far"))
    first = builder.add_operator(
        "embed é", kind=Kind.EMBEDDING, flop=0.1, bytes_read=3.0, bytes_written=1e300, colocation=7,
        profile=(1 / 3, np.inf),
    )  # fmt: skip
    second = builder.add_operator(
        "loss", phase=Phase.BACKWARD, micro_batch=2, replica=1, dtype="bfloat16", mirror=first,
        profile=(0.0, 2.0),
    )  # fmt: skip
    tensor = builder.add_tensor(first, 12.5, dtype="float16", link=(0.0, 0.25))
    builder.add_use(tensor, second)
    builder.add_tensor(second, 1.0, link=(0.0, 1e-9))
    builder.add_parameter("w", first, parameter=4.0, gradient=8.0, optimizer=16.0)
    return builder.build()


def assert_same(graph: OpGraph, other: OpGraph) -> None:
    assert graph.name == other.name
    for column in TEXT_COLUMNS:
        assert getattr(graph, column) == getattr(other, column), column
    for column in (*INT_COLUMNS, *FLOAT_COLUMNS, *TABLE_COLUMNS):
        mine, theirs = getattr(graph, column), getattr(other, column)
        assert mine.dtype == theirs.dtype, column
        np.testing.assert_array_equal(mine.ravel(), theirs.ravel(), err_msg=column)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_saved_graph_loads_exactly(tmp_path: Path, suffix: str) -> None:
    drawn = [synthetic_training_graph(np.random.default_rng(seed), 2, 2, 2) for seed in range(5)]
    for graph in (small_graph(), GraphBuilder("empty").build(), *drawn):
        save_graph(graph, tmp_path / f"g{suffix}", {"model": "toy", "batch": 2})
        loaded = load_graph(tmp_path / f"g{suffix}")
        assert_same(loaded, graph)
        assert graph_hash(loaded) == graph_hash(graph)
    assert [file.name for file in tmp_path.iterdir()] == [f"g{suffix}"]


def test_the_hash_sees_every_column_and_not_the_name() -> None:
    graph = small_graph()
    assert graph_hash(graph) == graph_hash(small_graph("another name"))
    changes: dict[str, object] = {
        "op_names": ("embed", "loss"),
        "parameter_names": ("v",),
        "profile_classes": ("cpu", "tpu"),
        "link_classes": ("same", "near"),
        "consumer_ptr": np.array([0, 0, 0]),
        "consumer": np.array([], dtype=np.int64),
        "producer": np.array([0, 0]),
        "parameter_owner": np.array([1]),
        "mirror": np.array([-1, -1]),
        "colocation": np.array([1, -1]),
        "kind": np.array([0, 0]),
        "phase": np.array([1, 1]),
    }
    for column in (*TEXT_COLUMNS, *INT_COLUMNS, *FLOAT_COLUMNS, *TABLE_COLUMNS):
        value = changes.get(column, getattr(graph, column))
        fields = {column: value if column in changes else getattr(graph, column) + 1}
        if column == "consumer_ptr":
            fields["consumer"] = changes["consumer"]
        if column == "consumer":
            fields["consumer_ptr"] = changes["consumer_ptr"]
        assert graph_hash(replace(graph, **fields)) != graph_hash(graph), column


def test_units_version_and_unsupported_times_stand_in_the_json(tmp_path: Path) -> None:
    save_graph(small_graph(), tmp_path / "g.json")
    document = read_json(tmp_path / "g.json")
    assert document["schema_version"] == 1
    assert document["units"] == {"time": "s", "size": "byte", "work": "FLOP"}
    assert document["operators"][0]["profile_seconds"] == [1 / 3, None]
    assert document["operators"][0]["dtype"] in DTYPES
    assert document["tensors"][0]["consumers"] == ["loss"]


def in_unit(path: Path, unit: object) -> Path:
    """The small graph as JSON that says its times are in another unit."""
    save_graph(small_graph(), path)
    document = read_json(path)
    document["units"]["time"] = unit
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(("unit", "seconds"), [("ms", 1e-3), ("us", 1e-6), ("s", 1.0)])
def test_times_are_read_in_the_unit_that_the_file_names(
    unit: str, seconds: float, tmp_path: Path
) -> None:
    file = read_graph_file(in_unit(tmp_path / "g.json", unit))
    expected = small_graph().profile_seconds * seconds
    np.testing.assert_allclose(file.graph.profile_seconds, expected, rtol=1e-15)
    np.testing.assert_allclose(
        file.graph.link_seconds, small_graph().link_seconds * seconds, rtol=1e-15
    )
    assert file.provenance.get("time_unit", "s") == unit


@pytest.mark.parametrize("unit", ["h", ["ms"]])
def test_an_unknown_unit_is_refused(tmp_path: Path, unit: object) -> None:
    with refusal(r"field 'units\.time': .* is not 's', 'ms'"):
        load_graph(in_unit(tmp_path / "g.json", unit))


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    save_graph(small_graph(), tmp_path / "g.json")
    text = (tmp_path / "g.json").read_text()
    (tmp_path / "g.json").write_text(text.replace('"flop"', '"name"', 1))
    with refusal(r"g\.json: record name: stands twice"):
        load_graph(tmp_path / "g.json")


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with refusal(r"suffix must be one of \.npz, \.json, \.json\.gz"):
        save_graph(small_graph(), tmp_path / "g.pkl")
    assert list(tmp_path.iterdir()) == []


def edited(path: Path, record: tuple[str, int], field: str, value: object) -> Path:
    """The small graph as JSON with one field of one record replaced (deleted by ...)."""
    save_graph(small_graph(), path)
    document = read_json(path)
    target = document[record[0]][record[1]]
    if value is ...:
        del target[field]
    else:
        target[field] = value
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("record", "field", "value", "place", "fault"),
    [
        (("operators", 0), "flop", -1.0, "record embed é: field 'flop'", "-1.0 is negative"),
        (("operators", 0), "flop", ..., "record operators[0]: field 'flop'", "is missing"),
        (("operators", 0), "flop", "9", "record operators[0]: field 'flop'", "'9' is not"),
        (("operators", 1), "kind", "MAGIC", "record operators[1]: field 'kind'", "unknown 'MAGIC'"),
        (("operators", 1), "name", "embed é", "record operators[1]: field 'name'", "stands twice"),
        (("operators", 1), "replica", 10**30, "field 'replica'", "is not"),
        (("operators", 1), "profile_seconds", [1.0], "field 'profile_seconds'", "not 2 numbers"),
        (("tensors", 0), "producer", "x", "record tensors[0]: field 'producer'", "unknown 'x'"),
        (("tensors", 0), "consumers", ["x"], "record tensors[0]: field 'consumers'", "unknown 'x'"),
        (("tensors", 1), "consumers", ["embed é"], "field 'consumer'", "topological order"),
        (("tensors", 0), "bytes", -5, "record 0: field 'tensor_bytes'", "negative"),
        (("parameters", 0), "owner", "x", "record parameters[0]: field 'owner'", "unknown 'x'"),
        (("parameters", 0), "name", "a\0", "'a\\x00'", "control character"),
    ],
)
def test_a_faulty_record_is_named(
    tmp_path: Path, record: tuple[str, int], field: str, value: object, place: str, fault: str
) -> None:
    path = edited(tmp_path / "g.json", record, field, value)
    with refusal(".*".join(map(re.escape, (str(path), place, fault)))):
        load_graph(path)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b"[1, 2]", "'format' is not"),
        (b'{"format": "other"}', "'format' is not"),
        (b'{"format": "meshwright.graph", "schema_version": 99}', "this release reads 1"),
        (b'{"format": "meshwright.graph", "schema_version": 1}', "is missing"),
        (gzip.compress(b"{}", mtime=0)[:-4], "truncated or damaged"),
        (b"PK\x03\x04 nothing", "truncated or damaged"),
        (b"\xff\xfe\x00", "not JSON"),
    ],
)
def test_foreign_content_is_named(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "g.npz"
    path.write_bytes(content)
    with refusal(fault) as caught:
        load_graph(path)
    assert caught.value.file == path


def rewritten(path: Path, **arrays: np.ndarray) -> Path:
    save_graph(small_graph(), path)
    with np.load(path, allow_pickle=False) as archive:
        content = dict(archive) | arrays
    np.savez(path, **{name: array for name, array in content.items() if array.size or array.ndim})
    return path


@pytest.mark.parametrize(
    ("flop", "fault"),
    [
        (np.array([1.0, 2.0]), r"'sha256'.*does not match"),
        (np.array(["a", "b"]), r"field 'flop'.*not a 1-dimensional one of float64"),
        (np.array([None, {}], dtype=object), r"field 'flop'.*allow_pickle"),
    ],
)
def test_a_changed_array_is_named(tmp_path: Path, flop: np.ndarray, fault: str) -> None:
    path = rewritten(tmp_path / "g.npz", flop=flop)
    with refusal(fault):
        load_graph(path)


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    save_graph(small_graph(), path)
    with np.load(path, allow_pickle=False) as archive:
        content = {name: archive[name] for name in archive.files if name != "producer"}
    np.savez(path, **content)
    with refusal("field 'producer': is missing"):
        load_graph(path)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(suffix=st.sampled_from(SUFFIXES), cut=st.floats(0, 0.999))
def test_every_truncation_is_an_input_error(tmp_path: Path, suffix: str, cut: float) -> None:
    path = tmp_path / f"g{suffix}"
    save_graph(small_graph(), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(cut * (len(content) - 1))])
    with refusal():
        load_graph(path)


@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_or_harmless(tmp_path: Path, at: float, bit: int) -> None:
    path = tmp_path / "g.npz"
    graph = small_graph()
    save_graph(graph, path)
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1 << bit
    path.write_bytes(content)
    try:
        loaded = load_graph(path)
    except InputError as error:
        named = error.file
    else:
        named = path
        assert graph_hash(loaded) == graph_hash(graph)
    assert named == path


def test_an_interrupted_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "g.npz"
    save_graph(small_graph("old"), path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_graph(small_graph("new"), path)
    assert load_graph(path).name == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["g.npz"]


def test_an_object_in_memory_is_the_graph_of_its_file(tmp_path: Path) -> None:
    graph = synthetic_training_graph(np.random.default_rng(3))
    save_graph(graph, tmp_path / "graph.json")
    document = read_json(tmp_path / "graph.json")
    for message in (document, graph_document(graph)):
        assert graph_hash(graph_of(message)) == graph_hash(graph)
    with refusal(r"^graph: field 'sha256'"):
        graph_of({**document, "sha256": "0" * 64})
    with refusal("is no graph file"):
        graph_of({})
