"""A placement policy as a folder that plans: loaded without Ray, PyG, torch or the policy's code.

encoder.onnx          problems in, what a decoder takes of them out; any sizes
head.onnx             a group's scores on every device; any sizes
weights.safetensors   the weights by name
spec.json             sweeps, widths of features, origin, sha256 of each file
config.yaml           how it was trained
README.md             model card: evaluation, and the command that reproduces it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.arrays import BoolArray
from envs.errors import InputError, in_one_line
from envs.placement.episodes import ORDER_CLASSES
from envs.placement.sweeps import CANDIDATE
from envs.placement.whole import DEVICE, GIVEN, HIGH, LINK, LOW, NODE, NODE_DEVICE, WHOLE
from models.artifacts import (
    atomic_folder,
    check_folder,
    read_checked_spec,
    save_weights,
    write_spec,
)
from models.export.checkpoint import (
    CARD_FILE,
    CONFIG_FILE,
    SPEC_FILE,
    WEIGHTS_FILE,
    ModelCard,
    onnx_session,
)
from models.step.decoding import PARALLEL, SEQUENTIAL, Encoded, FeatureArray, Views

if TYPE_CHECKING:
    from torch import nn

    from models.step.placer import PlacerPolicy

KIND, VERSION = "meshwright.placer", 1
ENCODER_FILE, HEAD_FILE = "encoder.onnx", "head.onnx"
LISTED = (ENCODER_FILE, HEAD_FILE, WEIGHTS_FILE, CONFIG_FILE, CARD_FILE)
WIDTHS = {
    "node": NODE, "node_device": NODE_DEVICE, "device": DEVICE, "link": LINK, "whole": WHOLE,
    "candidate": CANDIDATE, "starts": GIVEN + 1,
}  # fmt: skip
LAYOUT: Mapping[str, tuple[str | int, ...]] = {  # of problems: B of them, G groups, D devices
    "node_features": ("B", "G", NODE), "node_mask": ("B", "G"),
    "node_device_features": ("B", "G", "D", NODE_DEVICE), "flow": ("B", "G", "G"),
    "device_features": ("B", "D", DEVICE), "device_mask": ("B", "D"),
    "link_features": ("B", "D", "D", LINK), "whole_features": ("B", WHOLE),
}  # fmt: skip
SIZES = {"B": 2, "G": 7, "D": 5}  # distinct, so that tracing ties no two together
USE = """## Use

```python
import meshwright as mw

graph = mw.capture(module, example)  # or mw.read_graph(path)
devices = mw.topology("mixed_v100_p100")
decision = mw.load("<this folder>").decide({"graph": graph, "topology": devices})
print(decision.content["step_time_s"], decision.content["plan"])
# looks further, so that its plans are mostly faster:
print(mw.plan(graph, devices, "learned", checkpoint="<this folder>", search=None))
```
"""
_HEAD = ("nodes", "devices", "mask", "x")


class OnnxPlacer:
    """`models.step.decoding.Network` of a folder.

    Raises:
        InputError: the folder is no placer's, or a file in it is damaged, foreign or of others.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        check_folder(self.folder)
        self.spec = read_checked_spec(self.folder, KIND, VERSION, LISTED)
        spec_file = self.folder / SPEC_FILE
        for key, own in (("widths", WIDTHS), ("orders", list(ORDER_CLASSES))):
            if self.spec.get(key) != own:
                raise InputError("is of other features than these", file=spec_file, field=key)
        sweeps = self.spec.get("sweeps")
        known = (SEQUENTIAL, PARALLEL)
        if not isinstance(sweeps, list) or not sweeps or any(x not in known for x in sweeps):
            raise InputError(f"{sweeps!r} is no list of sweeps", file=spec_file, field="sweeps")
        self.sweeps: list[str] = sweeps
        self._encoder = onnx_session(self.folder / ENCODER_FILE, Views._fields)
        self._head = onnx_session(self.folder / HEAD_FILE, _HEAD)

    def encode(self, views: Views) -> Encoded:
        """See `Network`."""
        return Encoded(*self._encoder.run(list(Encoded._fields), views._asdict()))

    def score(
        self, nodes: FeatureArray, devices: FeatureArray, mask: BoolArray, x: FeatureArray
    ) -> FeatureArray:
        """See `Network`."""
        given = {"nodes": nodes, "devices": devices, "mask": mask, "x": x}
        found: FeatureArray = self._head.run(["logits"], given)[0]
        return found


def export_placer(policy: PlacerPolicy, folder: Path, card: ModelCard) -> Path:
    """Write the folder, whole or not at all; one already there is replaced."""
    import torch

    from models.export.programs import program_of, write_onnx

    training = policy.training
    policy.eval()
    dims = {letter: torch.export.Dim(letter) for letter in SIZES}
    views, shapes = [], []
    for name in Views._fields:
        kind, shape = torch.bool if name.endswith("mask") else torch.float32, LAYOUT[name]
        size = [SIZES[n] if isinstance(n, str) else n for n in shape]
        views.append(torch.ones(size, dtype=kind))
        shapes.append({axis: dims[n] for axis, n in enumerate(shape) if isinstance(n, str)})
    hidden, samples = policy.config.hidden, torch.export.Dim("S")
    head = (
        torch.zeros(3, hidden), torch.zeros(3, 5, hidden), torch.ones(3, 5, dtype=torch.bool),
        torch.zeros(3, 5, CANDIDATE),
    )  # fmt: skip
    pair = {0: samples, 1: dims["D"]}
    with atomic_folder(folder) as temporary:
        encoder = program_of(policy.encoder, tuple(views), (tuple(shapes),))
        write_onnx(encoder, Views._fields, Encoded._fields, temporary / ENCODER_FILE)
        scores = program_of(policy.head, head, ({0: samples}, pair, pair, pair))
        write_onnx(scores, _HEAD, ("logits",), temporary / HEAD_FILE)
        policy.train(training)
        spec = {
            "kind": KIND, "schema_version": VERSION, "units": "times in ideal steps",
            "sweeps": list(policy.config.sweeps), "orders": list(ORDER_CLASSES), "widths": WIDTHS,
            "bounds": [LOW, HIGH], "config": asdict(policy.config),
        }  # fmt: skip
        own_card = replace(card, text=f"{card.text.strip()}\n\n{USE}")
        write_beside(policy, temporary, own_card, spec)
    return folder


def write_beside(policy: nn.Module, folder: Path, card: ModelCard, spec: Mapping[str, Any]) -> None:
    """The weights, the card and what they were trained with, and `spec` with the hashes of all."""
    save_weights(policy, folder / WEIGHTS_FILE)
    (folder / CONFIG_FILE).write_text(card.config_yaml, encoding="utf-8")
    (folder / CARD_FILE).write_text(card.markdown(), encoding="utf-8")
    whole = {
        **spec, "parameters": sum(value.numel() for value in policy.parameters()),
        "provenance": dict(card.provenance),
    }  # fmt: skip
    write_spec(folder, whole)


def trained_placer(folder: Path) -> PlacerPolicy:
    """The policy in a folder that `export_placer` wrote, to learn on.

    Raises:
        InputError: the folder is no placer's, or a file in it is damaged or foreign.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from models.step.placer import PlacerConfig, PlacerPolicy

    spec = read_checked_spec(folder, KIND, VERSION, LISTED)
    try:
        saved = {field.name: spec["config"][field.name] for field in fields(PlacerConfig)}
        policy = PlacerPolicy(PlacerConfig(**{**spec["config"], **saved}))
        policy.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except (KeyError, TypeError, RuntimeError, SafetensorError) as error:
        message = in_one_line(error)
        raise InputError(f"holds no such policy ({message})", file=folder) from error
    return policy
