"""The zoo: known figures of known models, and its disk cache."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from unittest import TestCase

import numpy as np
import pytest
import torch

from envs.graphs.fake_module import build_module
from envs.graphs.op_graph import NONE, OpGraph, Phase
from envs.graphs.storage import graph_hash
from envs.graphs.synthetic import synthetic_training_graph
from envs.graphs.zoo import cache_key, cached_graph, capture_zoo_model, default_folder, zoo_graph
from envs.graphs.zoo_models import ZOO, ZooShape, zoo_model
from envs.graphs.zoo_modules import ExpertLayer, MixtureOfExpertsConfig, workload
from tests.paths import ROOT
from tests.refusal import refusal
from tests.strength import at_full_strength

pytestmark = pytest.mark.slow

# published parameter counts
PARAMETERS = {
    "resnet50": 25_557_032,
    "vgg19": 143_667_240,
    "vit_base": 86_567_656,
    "bert_base": 109_514_298,
    "bert_large": 335_174_458,
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "t5_small": 60_506_624,
    "llama_7b": 6_738_415_616,
}


# One of every family; its larger twins differ in three numbers, and llama_7b is captured below.
DAILY = ("resnet50", "vgg19", "vit_base", "bert_base", "gpt2", "t5_small", "moe")


@cache
def captured(name: str, dtype: str = "float32") -> OpGraph:
    """With the model's own batch and sequence."""
    return capture_zoo_model(zoo_model(name, dtype=dtype))


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        *((name, {}, count) for name, count in PARAMETERS.items()),
        ("bert", {"layers": 24, "hidden": 1024}, PARAMETERS["bert_large"]),
        ("gpt", {"layers": 48, "hidden": 1600}, PARAMETERS["gpt2_xl"]),
        ("llama", {"layers": 40, "hidden": 5120}, 13_015_864_320),  # LLaMA 13B
        ("t5", {"layers": 12, "hidden": 768}, 222_903_552),  # T5 base
        ("vit", {"layers": 24, "hidden": 1024}, 304_326_632),  # ViT-L/16
    ],
)
def test_a_model_has_its_published_parameters(name: str, shape: ZooShape, parameters: int) -> None:
    module = build_module(workload(zoo_model(name, **shape)).module)
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters


def test_a_family_has_the_sizes_that_are_asked_for() -> None:
    step: ZooShape = {"batch": 2, "micro_batches": 1, "layers": 2, "hidden": 128}
    for family in ("bert", "gpt", "llama", "moe", "t5", "vit"):
        text: ZooShape = {} if family == "vit" else {"vocabulary": 90, "sequence": 2100}
        for heads in (None, 4):
            graph = capture_zoo_model(zoo_model(family, **step, **text, heads=heads))
            assert graph.name == family
            assert 1e6 < graph.parameter_bytes.sum() < 30e6


def test_a_published_model_is_its_family_in_its_size() -> None:
    step: ZooShape = {"batch": 1, "micro_batches": 1}
    medium = zoo_graph("gpt2_medium", **step)
    assert graph_hash(zoo_graph("gpt", **step, layers=24, hidden=1024)) == graph_hash(medium)


@pytest.mark.parametrize("name", ZOO if at_full_strength() else DAILY)
def test_every_model_is_captured(name: str) -> None:
    graph = captured(name)
    if name in PARAMETERS:
        assert graph.parameter_bytes.sum() == 4 * PARAMETERS[name]
    assert graph.backward_flop() == pytest.approx(2 * graph.forward_flop(), rel=0.02)
    assert graph.num_micro_batches == ZOO[name].micro_batches
    assert (graph.mirror[graph.phase == Phase.BACKWARD] != NONE).all()
    assert (graph.gradient_bytes == graph.parameter_bytes).all()
    assert (graph.optimizer_bytes == 2 * graph.parameter_bytes).all()
    dropout = any("dropout" in operator for operator in graph.op_names)
    assert dropout == (ZOO[name].family not in {"resnet", "vit", "llama"})


def test_forward_flop_of_bert_base() -> None:
    """8 samples of 128 tokens, as the published figures are."""
    bare = capture_zoo_model(
        zoo_model("bert_base", batch=8, sequence=128, micro_batches=1, head="none")
    )
    whole = captured("bert_base")  # 4 micro-batches of 8 samples
    for flop, ours, back in (
        (1.788e11, bare.forward_flop(), bare.backward_flop()),
        (2.280e11, whole.forward_flop() / 4, whole.backward_flop() / 4),
    ):
        assert ours == pytest.approx(flop, rel=0.01)
        assert back == pytest.approx(2 * flop, rel=0.02)


@pytest.mark.proof
def test_llama_7b_is_captured_in_little_memory() -> None:
    program = (
        "import json, resource;"
        "from envs.graphs.zoo import capture_zoo_model;"
        "from envs.graphs.zoo_models import zoo_model;"
        "g = capture_zoo_model(zoo_model('llama_7b', batch=1, sequence=512, micro_batches=1));"
        "print(json.dumps([g.forward_flop(), g.backward_flop(),"
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        cwd=ROOT,
    )  # fmt: skip
    forward, backward, peak = json.loads(run.stdout.splitlines()[-1])
    assert forward == pytest.approx(6.90e12, rel=0.01)
    assert backward == pytest.approx(2 * forward, rel=0.02)
    assert peak * 1024 < 4 * 2**30


def test_half_precision_halves_the_bytes() -> None:
    full, half = captured("moe"), captured("moe", "bfloat16")
    assert 2 * half.parameter_bytes.sum() == full.parameter_bytes.sum()
    assert half.forward_flop() == full.forward_flop()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gpt5", {}, "resnet50"),
        ("gpt2", {"batch": 7, "micro_batches": 4}, "does not divide"),
        ("gpt2", {"sequence": 2048}, "1024 positions"),
        ("gpt2", {"batch": 0}, "0 is less than 1"),
        ("gpt2", {"head": "masked_lm"}, "causal_lm, none"),
        ("gpt2", {"optimizer": "adm"}, "adamw"),
        ("gpt2", {"dtype": "int8"}, "bfloat16"),
        ("resnet50", {"sequence": 128}, "has no"),
        ("gpt", {"hidden": 1000}, "field 'heads': 15 does not divide hidden = 1000"),
        ("bert", {"heads": 7}, "field 'heads': 7 does not divide hidden = 768"),
        ("vit", {"vocabulary": 9}, "has no vocabulary"),
        ("llama", {"layers": 0}, "field 'layers': 0 is less than 1"),
        ("gpt", {"width": 9}, "'width' is not one of layers, hidden"),
    ],
)
def test_bad_input_names_the_alternatives(
    name: str, changes: dict[str, object], message: str
) -> None:
    with refusal(message):
        zoo_graph(name, **changes)  # type: ignore[arg-type]


class TestMixtureOfExperts:
    config = MixtureOfExpertsConfig(
        vocabulary=50, max_sequence=8, hidden=8, intermediate=16, layers=2, heads=2, experts=4
    )

    def test_without_overflow_it_equals_the_dense_mixture(self) -> None:
        torch.manual_seed(0)
        roomy = MixtureOfExpertsConfig(**{**asdict(self.config), "capacity_factor": 4.0})
        layer = ExpertLayer(roomy)
        x = torch.randn(12, 8)
        out, _ = layer(x)
        probability = torch.softmax(layer.router(x), dim=-1)
        best = probability.topk(2, dim=-1)
        expected = torch.stack(
            [
                sum(
                    gate / best.values[t].sum() * layer.experts[int(e)](x[t])
                    for gate, e in zip(best.values[t], best.indices[t], strict=True)
                )
                for t in range(12)
            ]
        )
        torch.testing.assert_close(out, expected)

    def test_a_full_expert_drops_the_smallest_gates(self) -> None:
        tight = MixtureOfExpertsConfig(
            **{**asdict(self.config), "top_k": 1, "capacity_factor": 0.5}
        )
        layer = ExpertLayer(tight)
        assert tight.capacity(16) == 2
        out, _ = layer(torch.randn(16, 8))
        assert (out.abs().sum(dim=1) > 0).sum() <= 2 * tight.experts

    def test_the_router_learns(self) -> None:
        layer = ExpertLayer(self.config)
        out, balance = layer(torch.randn(12, 8))
        (out.square().sum() + balance).backward()
        assert layer.router.weight.grad is not None
        assert layer.router.weight.grad.abs().sum() > 0

    def test_sizes_are_checked(self) -> None:
        with refusal("top_k"):
            MixtureOfExpertsConfig(experts=2, top_k=3)
        with refusal("hidden"):
            MixtureOfExpertsConfig(hidden=10, heads=3)


class TestCache:
    @staticmethod
    def build() -> OpGraph:
        return synthetic_training_graph(np.random.default_rng(0))

    def test_the_second_call_reads_the_disk(self, tmp_path: Path) -> None:
        folder = tmp_path / "new" / "folder"
        first = cached_graph({"name": "x"}, self.build, folder)

        def forbidden() -> OpGraph:
            raise AssertionError("built although it was cached")

        second = cached_graph({"name": "x"}, forbidden, folder)
        assert first.op_names == second.op_names
        np.testing.assert_array_equal(first.flop, second.flop)
        with pytest.raises(AssertionError):
            cached_graph({"name": "y"}, forbidden, folder)

    @pytest.mark.parametrize("damage", [b"", b"not a graph", None])
    def test_a_damaged_entry_is_built_again(self, tmp_path: Path, damage: bytes | None) -> None:
        cached_graph({"name": "x"}, self.build, tmp_path)
        (entry,) = tmp_path.iterdir()
        content = entry.read_bytes()
        entry.write_bytes(content[: len(content) // 2] if damage is None else damage)
        with TestCase().assertLogs(level=logging.WARNING) as logged:
            graph = cached_graph({"name": "x"}, self.build, tmp_path)
        assert graph.forward_flop() > 0
        assert "damaged cache entry" in logged.output[0]
        assert entry.read_bytes()[:4] == content[:4]

    def test_the_key_depends_on_the_request_and_the_packages(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = cache_key({"batch": 1})
        assert before == cache_key({"batch": 1}) != cache_key({"batch": 2})
        monkeypatch.setattr("envs.graphs.zoo.version", lambda package: "0.0")
        assert cache_key({"batch": 1}) != before

    def test_the_folder_can_be_chosen_and_a_cached_graph_needs_no_torch(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("MESHWRIGHT_CACHE", str(tmp_path))
        assert default_folder() == tmp_path
        graph = zoo_graph("bert_base", batch=1, sequence=8, micro_batches=1)
        assert len(list(tmp_path.iterdir())) == 1
        assert graph.name == "bert_base"
        program = (
            "import sys; from envs.graphs.zoo import zoo_graph;"
            "zoo_graph('bert_base', batch=1, sequence=8, micro_batches=1);"
            "print('torch' in sys.modules)"
        )
        run = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True,
            cwd=ROOT,
        )  # fmt: skip
        assert run.stdout.strip() == "False"
