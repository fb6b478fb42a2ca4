"""Kernels' times: what a network is given, what it learns, its folder, and costs of graphs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from measured_kernels import KNOWN, SMALL, law, random_kernels, toy_fit
from numpy.testing import assert_allclose, assert_array_equal

from envs.cost import link_transfer_seconds
from envs.files import read_json
from envs.graphs.builder import GraphBuilder
from envs.graphs.kernels import Family, Kernels, kernels_of
from envs.graphs.op_graph import Kind, OpGraph
from envs.hardware.devices import CATALOGUE, DeviceSpec
from envs.units import DTYPES
from models.step.kernel_cost import (
    LAUNCH_S,
    WEIGHTS_FILE,
    Amid,
    LearnedCost,
    priced,
)
from models.step.kernel_features import INPUTS, Inputs, sustained_share
from models.step.kernel_fit import fit_amid, save_cost
from tests.envs.topologies import topology_named
from tests.refusal import refusal
from tests.strength import SEEDS, examples

V100, CPU = CATALOGUE["V100-16GB"], CATALOGUE["CPU"]
LEARNED = LearnedCost()


def product(m: float, n: float, k: float, rate: str = "float32") -> Kernels:
    sizes = (1.0, m, n, k, 2 * m * n * k, 4 * k * (m + n), 4 * m * n, 0.0, 0.0)
    return Kernels(np.array([Family.LINEAR]), *(np.array([x]) for x in sizes), (rate,))


def random_graph(seed: int, operators: int = 60) -> OpGraph:
    """Operators of all kinds and types, in pairs of equal ones; the first does nothing."""
    rng, builder = np.random.default_rng(seed), GraphBuilder(name="random")
    builder.add_operator("nothing")
    for number in range(operators):
        numbers = np.random.default_rng([seed, number // 2])
        flop, read, written = (10.0 ** numbers.uniform(0, top) for top in (12, 9, 9))
        kind, dtype = (int(x) for x in numbers.integers(0, (len(Kind), len(DTYPES))))
        known = DTYPES[dtype] if DTYPES[dtype] in V100.peak_flops else "int64"
        builder.add_operator(
            f"{number}", kind=Kind(kind), flop=flop, bytes_read=read, bytes_written=written,
            dtype=known,
        )  # fmt: skip
    builder.add_use(builder.add_tensor(1, float(rng.integers(1, 1000))), 2)
    return builder.build()


@examples(60)
@given(SEEDS, st.sampled_from(KNOWN))
def test_no_kernel_is_faster_than_the_data_sheet_allows(seed: int, spec: DeviceSpec) -> None:
    kernels = random_kernels(seed, 50, tuple(set(DTYPES) & set(spec.peak_flops)))
    inputs = Inputs(kernels, spec)
    assert np.isfinite(inputs.columns).all()
    peak = np.array([spec.peak_flops[name] for name in kernels.rate]) * inputs.most
    moved = (kernels.bytes_read + kernels.bytes_written) / spec.memory_bandwidth
    for alone in (False, True):
        seconds = LEARNED.kernel_seconds(kernels, spec, alone)
        assert np.isfinite(seconds).all()
        least = np.maximum(kernels.flop / peak, moved / inputs.most)
        assert (seconds >= (1 - 1e-12) * least + LAUNCH_S).all()


def test_columns_level_off() -> None:
    columns = [Inputs(product(m, m, m), V100).columns for m in (2.0**13, 2.0**16, 2.0**20)]
    assert columns[0].shape == (INPUTS, 1)
    assert np.abs(columns[1] - columns[0]).max() > 0.04
    assert_allclose(columns[2], columns[1], atol=0.02)


def test_columns_are_ratios_of_kernel_and_device() -> None:
    """Twice the processors and the memory, for twice the batch: nothing to tell them by."""
    twice = replace(
        V100,
        processors=2 * V100.processors,
        power_w=2 * V100.power_w,
        memory_bandwidth=2 * V100.memory_bandwidth,
        peak_flops={name: 2 * rate for name, rate in V100.peak_flops.items()},
    )
    one = product(640, 1280, 512)
    two = replace(
        one, batch=2 * one.batch, flop=2 * one.flop,
        bytes_read=2 * one.bytes_read, bytes_written=2 * one.bytes_written,
    )  # fmt: skip
    column = 4  # the logarithm of the batch itself
    found = [np.delete(x.columns, column) for x in (Inputs(one, V100), Inputs(two, twice))]
    assert_allclose(found[0], found[1], rtol=1e-6)


def test_power_holds_back_what_runs_on() -> None:
    assert sustained_share(CATALOGUE["T4"]) < sustained_share(V100) <= 1.0
    for m, slower in ((32.0, False), (8192.0, True)):
        inputs = Inputs(product(m, m, 8192.0), CATALOGUE["T4"])
        assert (inputs.ideal_s > 1.2 * inputs.least_s) == slower


def test_a_device_with_tf32_for_float32_is_as_quick_as_the_type() -> None:
    big, a100 = product(8192, 8192, 8192), CATALOGUE["A100-80GB"]
    rounded = replace(a100, peak_flops={"float32": a100.peak_flops["tfloat32"]})
    plain, tf32 = (LEARNED.kernel_seconds(big, spec)[0] for spec in (a100, rounded))
    typed = LEARNED.kernel_seconds(replace(big, rate=("tfloat32",)), a100)[0]
    assert 0.8 < tf32 / typed < 1.25
    assert plain > 4 * tf32
    slow = replace(a100, launch_overhead_s=1e-3)
    assert LEARNED.kernel_seconds(big, slow)[0] == pytest.approx(plain + 1e-3 - LAUNCH_S)


def test_a_fit_learns_a_law_and_an_untrained_network_has_not() -> None:
    kernels, fit = random_kernels(9, 300), toy_fit(0)
    truth, errors = law(kernels, CATALOGUE["P100-16GB"]), []
    for steps in (0, SMALL.steps):
        fit.train(steps)
        found = priced(fit.network.shares(), Amid(), kernels, CATALOGUE["P100-16GB"])
        errors.append(np.median(np.abs(found / truth - 1.0)))
    assert errors[1] < 0.15
    assert errors[0] > 2 * errors[1]


def test_a_fit_that_is_taken_up_again_is_the_one_left_alone() -> None:
    whole, begun = toy_fit(1), toy_fit(1)
    whole.train(7)
    whole.train(5)
    begun.train(7)
    numbers, files = begun.state()
    copies = {name: {key: x.clone() for key, x in part.items()} for name, part in files.items()}
    resumed = toy_fit(1)
    resumed.load(numbers, copies)
    assert resumed.steps == 7
    resumed.train(5)
    for name, weight in whole.network.state_dict().items():
        assert torch.equal(weight, resumed.network.state_dict()[name]), name
    assert whole.train(10**6) > 0.0
    assert (whole.steps, whole.train(3)) == (SMALL.steps, 0.0)


@examples(20)
@given(SEEDS, st.integers(1, 3))
def test_what_is_read_says_what_torch_says(seed: int, members: int) -> None:
    fit = toy_fit(seed % 1000, replace(SMALL, members=members, steps=5))
    fit.train(5)
    inputs = Inputs(random_kernels(seed, 40), V100)
    with torch.no_grad():
        said = fit.network(torch.from_numpy(inputs.columns.T), torch.from_numpy(inputs.most))
    assert_allclose(fit.network.shares()(inputs), said.numpy(), atol=1e-5)


def test_a_saved_cost_is_read_and_used(tmp_path: Path) -> None:
    fit, amid, kernels = toy_fit(2), Amid(-0.1, 0.2), random_kernels(3, 50)
    save_cost(fit.network, amid, tmp_path / "cost", {"seed": 2})
    cost = LearnedCost(str(tmp_path / "cost"))
    expected = priced(fit.network.shares(), amid, kernels, V100)
    assert_array_equal(cost.kernel_seconds(kernels, V100), expected)
    alone = cost.kernel_seconds(kernels, V100, alone=True)
    assert (alone > expected).any()
    fit.train(20)
    save_cost(fit.network, amid, tmp_path / "cost", {"seed": 2})
    assert (cost.kernel_seconds(kernels, V100) != expected).any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "other"}, "kind"),
        ({"config": {}}, "config"),
        ({"config": {"hidden": 5}}, "does not fit"),
        ({"config": {"hidden": 10**9}}, "config"),
        ({"amid": {"constant": "much"}}, "amid"),
        ({"sha256": {}}, WEIGHTS_FILE),
    ],
)
def test_a_wrong_folder_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    save_cost(toy_fit(0).network, Amid(), tmp_path / "cost", {})
    path = tmp_path / "cost/spec.json"
    spec = read_json(path)
    if change.get("config"):
        change = {"config": {**spec["config"], **change["config"]}}
    path.write_text(json.dumps({**spec, **change}))
    with refusal(words):
        LearnedCost(str(tmp_path / "cost")).kernel_seconds(product(8, 8, 8), V100)
    with refusal("no such file"):
        LearnedCost(str(tmp_path / "nowhere")).kernel_seconds(product(8, 8, 8), V100)


def test_a_device_without_figures_or_rate_is_refused() -> None:
    with refusal("CPU has no processors"):
        LEARNED.kernel_seconds(product(8, 8, 8), CPU)
    with refusal("V100-16GB has no bfloat16 rate"):
        LEARNED.kernel_seconds(product(8, 8, 8, "bfloat16"), V100)
    with refusal("has no float32 rate"):
        LEARNED.kernel_seconds(product(8, 8, 8), replace(V100, peak_flops={"float16": 1e14}))


@examples(20)
@given(SEEDS)
def test_a_graph_costs_what_its_kernels_do(seed: int) -> None:
    graph, topology = random_graph(seed), topology_named("mixed_v100_p100")
    seconds, kernels = LEARNED.operator_seconds(graph, topology), kernels_of(graph)
    assert seconds.shape == (graph.num_operators, topology.num_devices)
    assert (seconds[graph.op_names.index("nothing")] == 0.0).all()
    for column, device in enumerate(topology.devices):
        for row in np.flatnonzero(seconds[:, column]):
            alone = LEARNED.kernel_seconds(kernels.take(np.array([row])), device.spec)
            assert seconds[row, column] == pytest.approx(alone[0], rel=1e-5)
    moves = LEARNED.transfer_seconds(graph, topology)
    assert_array_equal(moves, link_transfer_seconds(graph, topology))


def test_kernels_of_a_graph_are_the_products_they_were() -> None:
    builder = GraphBuilder(name="one")
    sizes = {"flop": 2.0 * 64 * 96 * 128, "bytes_read": 4.0 * 128 * 160, "bytes_written": 24_576.0}
    for kind, dtype in ((Kind.MATMUL, "float32"), (Kind.FUSED, "float32"), (Kind.MATMUL, "int32")):
        builder.add_operator(f"{kind.name} {dtype}", kind=kind, dtype=dtype, **sizes)
    kernels = kernels_of(builder.build())
    assert kernels.family.tolist() == [Family.LINEAR, Family.LINEAR, Family.ELEMENTWISE]
    for name, size in (("m", 96.0), ("n", 64.0), ("k", 128.0)):
        assert getattr(kernels, name)[:2] == pytest.approx(size)
    assert kernels.flop.tolist() == [sizes["flop"], sizes["flop"], 0.0]


def test_a_factor_is_found_again() -> None:
    rng = np.random.default_rng(0)
    alone, launch, device = rng.uniform(0.1, 1.0, 30), rng.uniform(0, 0.01, 30), np.arange(30) % 3
    sustained = np.array([1.0, 0.7, 0.4])[device]
    seconds = alone * np.exp(-0.1 + 0.3 * np.log(sustained)) + launch
    found = fit_amid(alone, launch, sustained, seconds, device)
    assert (found.constant, found.slope) == pytest.approx((-0.1, 0.3), abs=1e-6)
