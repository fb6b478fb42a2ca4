"""Scheduler checkpoints: a folder that decides, loaded without Ray, PyG or the policy's code.

policy.onnx           one observation in, one logit per action and the value out; any sizes
policy.pt2            the same program for torch.export
weights.safetensors   the weights by name
spec.json             layout of observation and action, sizes, origin, sha256 of each file
config.yaml           the configuration of the training run
README.md             model card: evaluation, and the command that reproduces it
durations/            only with an order that reads it: a posterior (`models.durations.network`)

Where a plan decides, `spec.json` describes it under `plan`, and there is no network: beside it lie
README.md and the posterior alone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from envs.errors import InputError
from models.artifacts import (
    atomic_folder,
    check_folder,
    check_hashes,
    check_listed,
    hashes_of,
    read_kind,
    write_spec,
)
from models.layout import FieldLayout, Observation, num_cluster_actions

KIND = "meshwright.scheduler"
SCHEMA_VERSION = 1
CLUSTER = "cluster"  # the observation_kind
ONNX_FILE, PT2_FILE, WEIGHTS_FILE = "policy.onnx", "policy.pt2", "weights.safetensors"
SPEC_FILE, CONFIG_FILE, CARD_FILE = "spec.json", "config.yaml", "README.md"
LISTED_FILES = (ONNX_FILE, PT2_FILE, WEIGHTS_FILE, CONFIG_FILE, CARD_FILE)
PLAN = "plan"  # key of a spec without a network
DURATIONS_FOLDER = "durations"
LAYOUT = TypeAdapter(tuple[FieldLayout, ...])  # in a spec

Decision = tuple[NDArray[np.float32], float]  # masked logits, value
Runtime = Callable[[Observation], Decision]  # an exported policy on one observation


@dataclass(frozen=True)
class ModelCard:
    """What a reader of the folder wants to know.

    Attributes:
        title: one line.
        text: Markdown: what it was trained on, how it compares, what it cannot do.
        config_yaml: the resolved configuration of the training run.
        provenance: seed, package version, git commit, hashes of inputs; goes into `spec.json`.
    """

    title: str
    text: str
    config_yaml: str
    provenance: Mapping[str, Any]

    def markdown(self, about: str = "") -> str:
        """The README, which begins with what the files are about."""
        origin = "\n".join(f"* {name}: {value}" for name, value in self.provenance.items())
        return f"# {self.title}\n\n{about}{self.text.strip()}\n\n## Origin\n\n{origin}\n"


@dataclass(frozen=True)
class ExpertSpec:
    """The expert whose action a policy is shown, or the plan that decides.

    Attributes:
        document: kind and numbers, for `spec.json`.
        folders: name inside the checkpoint -> a folder to copy there.
    """

    document: Mapping[str, Any]
    folders: Mapping[str, Path]


@dataclass(frozen=True, eq=False)
class SchedulerCheckpoint:
    """A checkpoint folder whose files are the ones that were written."""

    folder: Path
    spec: dict[str, Any]
    layout: tuple[FieldLayout, ...]  # of what the network takes; empty where a plan decides

    def arrays(self, observation: Observation) -> dict[str, NDArray[Any]]:
        """The arrays of `observation` as the policy takes them.

        Raises:
            InputError: an array is missing, or its dtype or shape does not fit the layout.
        """
        sizes: dict[str, int] = {}
        arrays = {}
        for field in self.layout:
            if field.optional and field.name not in observation:
                sizes.update({n: 0 for n in field.shape if isinstance(n, str)})
                rows = tuple(0 if isinstance(n, str) else n for n in field.shape)
                arrays[field.name] = np.zeros(rows, field.dtype)
                continue
            if field.name not in observation:
                raise InputError(
                    "the observation has no such array", file=self.folder, field=field.name
                )
            array = np.ascontiguousarray(observation[field.name])
            fits = array.dtype == field.dtype and array.ndim == len(field.shape)
            for expected, actual in zip(field.shape, array.shape, strict=False):
                size = expected if isinstance(expected, int) else sizes.setdefault(expected, actual)
                fits = fits and size == actual
            if not fits:
                raise InputError(
                    f"the policy takes {field.dtype} {field.shape}, the observation has "
                    f"{array.dtype} {array.shape} (with {sizes})",
                    file=self.folder,
                    field=field.name,
                )
            arrays[field.name] = array
        expected = num_cluster_actions(sizes, bool(self.spec["action"]["preemption"]))
        if sizes["A"] != expected:
            raise InputError(
                f"the policy gives {expected} logits, the observation has {sizes['A']} actions "
                f"(with {dict(sizes)})",
                file=self.folder,
                field="action_mask",
            )
        return arrays


def load_checkpoint(folder: str | Path) -> SchedulerCheckpoint:
    """Read `spec.json` and check every file against it.

    Raises:
        InputError: naming the file that is missing, damaged, or of another kind or version.
    """
    folder = Path(folder)
    check_folder(folder)
    spec_file = folder / SPEC_FILE
    spec = read_kind(spec_file, KIND, SCHEMA_VERSION)
    check_listed(spec_file, spec, (CARD_FILE,) if PLAN in spec else LISTED_FILES)
    folders = spec.get("folders", {})
    known = isinstance(folders, dict) and set(folders) <= {DURATIONS_FOLDER}
    if not known or not all(isinstance(listed, dict) for listed in folders.values()):
        message = f"must list the files of {DURATIONS_FOLDER}, or nothing"
        raise InputError(message, file=spec_file, field="folders")
    for name, listed in folders.items():
        check_hashes(folder / name, listed)
    if PLAN in spec:
        return SchedulerCheckpoint(folder, spec, ())
    if spec.get("observation_kind") != CLUSTER:
        reason = f"is of kind {spec.get('observation_kind')!r}, not {CLUSTER!r}"
        raise InputError(reason, file=spec_file, field="observation_kind")
    try:
        layout = LAYOUT.validate_json(json.dumps(spec.get("observation")), strict=True)
    except ValidationError as error:
        reason = f"is not a list of arrays ({error.errors()[0]['msg']})"
        raise InputError(reason, file=spec_file, field="observation") from error
    action = spec.get("action")
    if not (isinstance(action, dict) and isinstance(action.get("preemption"), bool)):
        raise InputError("is not true or false", file=spec_file, field="action.preemption")
    return SchedulerCheckpoint(folder, spec, layout)


def export_plan(plan: ExpertSpec, folder: Path, card: str, provenance: Mapping[str, Any]) -> Path:
    """Write the checkpoint folder of a plan, whole or not at all; one already there is replaced."""
    with atomic_folder(folder) as temporary:
        spec = {PLAN: plan.document, "provenance": dict(provenance)}
        describe(temporary, card, spec, plan.folders)
    return folder


def describe(folder: Path, card: str, spec: Mapping[str, Any], folders: Mapping[str, Path]) -> None:
    """Write the card, copies of `folders`, and the spec of all that lies in a folder then."""
    (folder / CARD_FILE).write_text(card, encoding="utf-8")
    for name, source in folders.items():
        (folder / name).mkdir()
        for file in hashes_of(source):
            shutil.copyfile(source / file, folder / name / file)
    whole = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        **spec,
        "folders": {name: hashes_of(folder / name) for name in folders},
    }
    write_spec(folder, whole)


def onnx_session(path: Path, names: tuple[str, ...]) -> Any:
    """The program in a file, which takes arrays of these names, on one thread.

    Raises:
        InputError: it is no such program.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's errors share no base class
        first = str(error).splitlines()[0]
        raise InputError(f"not a readable ONNX model ({first})", file=path) from error
    found = [item.name for item in session.get_inputs()]
    if found != list(names):
        raise InputError(f"takes {found}, {SPEC_FILE} says otherwise", file=path)
    return session


class OnnxRuntime:
    """Runs `policy.onnx`; the format holds no code, so that any author's file is safe to load.

    Raises:
        InputError: the file is no ONNX model, or takes other inputs than the spec says.
    """

    def __init__(self, checkpoint: SchedulerCheckpoint) -> None:
        path = checkpoint.folder / ONNX_FILE
        names = tuple(field.name for field in checkpoint.layout)
        self._session = onnx_session(path, names)
        self._checkpoint = checkpoint

    def __call__(self, observation: Observation) -> Decision:
        """Logits and value."""
        logits, value = self._session.run(["logits", "value"], self._checkpoint.arrays(observation))
        return logits, float(value)
