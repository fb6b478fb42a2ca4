"""A file has made only what `conf` names: nothing else in it is imported, called or unpickled."""

from __future__ import annotations

import gzip
import pickle
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from layered_step import layered_step
from refusals import content_of, refused

from agents.placement import labelling
from envs.cluster.workload.readers.canonical import CanonicalReader
from envs.errors import InputError
from envs.graphs.storage import save_graph
from experiments.cluster.trace_source import read_workload
from experiments.command_line import main_of
from experiments.config.command_words import use_command_line, use_config_folders
from experiments.config.composing import check_words, hydra_over_configs, hydra_words
from experiments.config.config_source import SHIPPED_CONFIGS
from experiments.config.registry import GROUPS
from experiments.config.targets import may_be_named, object_in_file
from experiments.learning.main_cluster import MainClusterConfig
from experiments.learning.one_problem import TrainConfig
from experiments.network import synchronising as gradients
from experiments.reporting.claims import _number_of
from experiments.run.saved_run import saved_config, saved_nodes
from experiments.step.problem import StoredGraph, topology_file
from experiments.studies.running import StudyConfig
from tests.envs.topologies import topology_text
from tests.paths import CONF
from tests.refusal import refusal

Node = Mapping[str, Any]
HOSTILE: dict[str, Node] = yaml.safe_load(
    Path(__file__).with_name("hostile_targets.yaml").read_text(encoding="utf-8")
)
OURS = {"_target_": "envs.hardware.builders.uniform"}  # may be named, and is never reached
SHAPES: Sequence[Callable[[Node], Node]] = (
    lambda node: node,
    lambda node: {**OURS, "devices": [node]},
    lambda node: {**OURS, "_recursive_": False, "spec": {"inner": [{**node, "_partial_": True}]}},
    lambda node: {"x": {**OURS, "_convert_": "none", "spec": node}, **OURS},
)


class Evil:
    """Leaves a trace where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, ("marker", "w")


@pytest.fixture(autouse=True)
def work(work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with what hostile files reach for; afterwards it is as it was."""
    (work / "lying_here.py").write_text("open('marker', 'w')\nclass Thing: ...\n")
    (work / "folder").mkdir()
    for name in ("kept", "folder/kept"):
        (work / name).write_text("kept")
    (work / "evil.pkl").write_bytes(pickle.dumps(Evil()))
    np.save(work / "evil.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    save_graph(layered_step(3, 2), work / "graph.npz")
    monkeypatch.syspath_prepend(work)
    before = content_of(work)
    use_command_line([])
    yield work
    use_command_line([])
    use_config_folders([])
    after = content_of(work)
    assert not (work / "marker").exists()
    assert {path: after.get(path) for path in before} == before
    assert not {"lying_here", "antigravity"} & set(sys.modules)


def written(node: Node, name: str = "evil.yaml") -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(yaml.safe_dump(dict(node), sort_keys=False))
    return name


def saved(node: Node) -> str:
    """A run folder of somebody else's."""
    written({"problem": {}, "env": OURS, "graph": node}, "run/config.yaml")
    Path("run/plan.json").write_text("{}")
    return "run"


def of_group(word: str, app: str) -> Callable[[Node], object]:
    """Composing a command line with a file in place of an option."""

    def read(node: Node) -> object:
        with hydra_over_configs() as loader:
            return hydra_words([f"{word}={written(node)}"], loader, app)

    return read


READERS: dict[str, Callable[[Node], object]] = {
    "topology": lambda node: topology_file(written(node)),
    "workload": lambda node: read_workload(written(node)),
    "study": of_group("study", "study"),
    "split": of_group("split", "split_windows"),
    "interference": of_group("interference", "evaluate_cluster"),
    "agent": of_group("agent", "plan"),
    "agent at another key": of_group("+agent@agents.mine", "evaluate_cluster"),
    "nodes of a run": lambda node: saved_nodes(saved(node), ("env",)),
    "config of a run": lambda node: saved_config(saved(node), TrainConfig),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_conf_does_not_name_is_refused_before_it_is_imported(reader: str) -> None:
    assert len(HOSTILE) >= 30
    for number, (target, arguments) in enumerate(HOSTILE.items()):
        shape = SHAPES[0 if reader == "workload" else number % len(SHAPES)]
        node = shape({"_target_": target, **arguments})
        line = refused(lambda node=node: READERS[reader](node))
        assert re.search(r"(evil|config)\.yaml", line), line
        assert "_target_" in line
        assert repr(target) in line


@pytest.mark.parametrize(
    ("item", "key"),
    [
        ({"name": "${oc.env:HOME}"}, "name"),
        ({"name": ["a", "${oc.decode:'1'}"]}, "name[1]"),
        ({"name": "${.other}"}, "name"),
        ({"a": {"${oc.env:HOME}": 1}}, "a."),
        ({"_args_": ["kept"]}, "_args_"),
        ({"executor": {**OURS, "address": "a:1"}}, "executor.address"),
        ({"training": {"learner": {**OURS, "ray_address": "a:1"}}}, "learner.ray_address"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("reader", READERS)
def test_a_file_takes_nothing_from_its_surroundings(reader: str, item: Node, key: str) -> None:
    refused(lambda: READERS[reader]({**OURS, **item}), [".yaml", key])


def test_words_in_a_file_name_nothing_else() -> None:
    """A study's words and a claim's command are command lines that somebody else has typed."""
    for target in HOSTILE:
        if re.fullmatch(r"(\w+\.)+\w+", target):
            for word in (f"agent={target}", f"+agent@a.b={target}", f"agent._target_={target}",
                         f"x=[{{a: {{_target_: {target}}}}}]"):  # fmt: skip
                refused(lambda word=word: check_words(["budget_s=1", word]), [target, "_target_"])
    for word in ("--config-dir=folder", "x=${oc.env:HOME}"):
        refused(lambda word=word: check_words([word]), [word])
    claim = "python -m experiments.plan agent=os.system"
    refused(lambda: _number_of(claim, "x", Path("reruns")), ["os.system", "_target_"])
    check_words(["graph=experiments.step.captured_models.Captured", "graph=graph.npz", "~agents.x"])


def commands() -> Iterator[tuple[str, Node, Sequence[str]]]:
    """(file, what is in it, command line) for every way to hand a file over."""
    node = {"_target_": "os.system", "command": "touch marker"}
    study = {"title": "x", "solvers": {"x": ["agent=lying_here.Thing"]}}
    for evil, words in (
        (node, "plan graph=graph.npz topology=evil.yaml"),
        (node, "plan agent=evil.yaml"),
        (node, "evaluate split=evil.yaml"),
        (node, "evaluate env=cluster interference=evil.yaml"),
        (node, "synchronise topology=evil.yaml"),
        (node, "evaluate env=cluster agent=fifo trace.format=synthetic trace.jobs=9"
         " trace.workload=evil.yaml"),
        (node, "study study=evil.yaml"),
        (study, "study study=evil.yaml"),
    ):  # fmt: skip
        yield "evil.yaml", evil, words.split()
    yield "run/config.yaml", {"env": node}, ("export", "run=run")
    for app, schema, key in (
        ("train", TrainConfig, "graph"),
        ("main", MainClusterConfig, "placement"),
        ("study", StudyConfig, "study"),
    ):
        nothing = dict.fromkeys(x.name for x in fields(schema))
        yield "run/config.yaml", {**nothing, key: node}, (app, "resume=run")


@pytest.mark.parametrize(("file", "node", "command"), list(commands()), ids=lambda x: str(x)[:60])
def test_a_command_ends_with_one_line_and_code_2(
    file: str, node: Node, command: Sequence[str], capfd: pytest.CaptureFixture[str]
) -> None:
    written(node, file)
    where = [] if "resume=run" in command else ["hydra.run.dir=out"]
    assert main_of(command[0])([*command[1:], *where]) == 2
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert "_target_" in line
    assert file in line or "lying_here.Thing" in line
    assert not Path("out/config.yaml").exists()


def test_what_is_ones_own_is_named_again(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (work / "own_part.py").write_text("def made(**_): ...\n")
    written({"env": {"_target_": "own_part.made"}}, "run/config.yaml")
    written({"_target_": "own_part.made"}, "mine/env/own.yaml")
    export = main_of("export")
    assert export(["run=run"]) == 2
    assert "'own_part.made'" in (line := capfd.readouterr().err)
    assert "--trust own_part.made" in line
    assert "own_part" not in sys.modules
    for again in (["--trust", "own_part.made"], ["--trust=own_part.made"], ["--config-dir=mine"]):
        assert export(["run=run", *again]) == 2
        assert "'training': is missing" in capfd.readouterr().err  # which comes after
        assert sys.modules.pop("own_part")


def test_all_that_conf_names_may_be_named_by_either_name() -> None:
    found = {
        name
        for path in CONF.rglob("*.yaml")
        for name in re.findall(r"_target_: ([\w.]+)", path.read_text())
    }
    rows = [(group, name) for group, names in GROUPS.items() for name in names]
    whole = "\n".join(str(SHIPPED_CONFIGS.node(f"{group}/{name}")) for group, name in rows)
    found |= set(re.findall(r"'_target_': '([\w.]+)'", whole))
    assert len(found) > 200
    for name in found:
        assert may_be_named(name), name
        assert may_be_named(f"meshwright.{name}"), name


def evil_contents() -> Mapping[str, bytes]:
    """Pickles, bare and in the archives that numpy and torch make of them."""
    with zipfile.ZipFile("evil.npz", "w") as archive:
        for name in ("header.npy", "a.npy", "0/a.npy"):
            archive.write("evil.npy", name)
    with zipfile.ZipFile("evil.pt", "w") as archive:
        archive.write("evil.pkl", "archive/data.pkl")
    names = ("evil.pkl", "evil.npy", "evil.npz", "evil.pt")
    contents = {name: Path(name).read_bytes() for name in names}
    return {**contents, "evil.gz": gzip.compress(contents["evil.pkl"])}


UNPICKLED: dict[str, Callable[[str], object]] = {
    "graph": lambda path: StoredGraph(path).load(),
    "trace": lambda path: CanonicalReader().read(path),
    "labelled plans": lambda path: labelling._read(Path(path), "0/")["a"],
    "gradients": lambda path: gradients._array(path, 1),
}


@pytest.mark.parametrize("reader", UNPICKLED)
def test_nothing_is_unpickled(reader: str) -> None:
    for name, content in evil_contents().items():
        for ending in (".npz", ".npy", ".json", ".onnx", ".xls", ".txt", ".csv", ".parquet"):
            path = f"file_{name.replace('.', '_')}{ending}"
            Path(path).write_bytes(content)
            with pytest.raises((InputError, KeyError)):
                UNPICKLED[reader](path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("builders.mixed", "builders.mixd", r"topology\._target_.*did you mean \S*\.mixed"),
        ("device: P100-16GB", "device: P100-16G", r"topology\.servers\[1\]\.device"),
        ("servers:", "servers: [1", r"typo\.yaml: cannot be read (?!.*unicode)"),
    ],
)
def test_a_slip_in_a_file_is_told_where_it_stands(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    text = topology_text("mixed_v100_p100")
    assert old in text
    path = tmp_path / "typo.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with refusal(said):
        object_in_file(str(path), "topology")
