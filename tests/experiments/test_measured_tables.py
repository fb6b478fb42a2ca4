"""Predicted beside measured: tables read and refused, what rows come to, the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from envs.graphs.kernels import Kernels
from envs.graphs.transformer import (
    Execution,
    TransformerSize,
    kernels_of_part,
    parameters_of,
    parts_of,
)
from envs.hardware.devices import DeviceSpec, device_spec
from experiments.command_line import main_of
from experiments.measured.judging import ERRORS
from experiments.measured.models import (
    NotPricedError,
    Parallel,
    Server,
    model_seconds,
    named_size,
)
from experiments.measured.tables import read_kernels, read_layers, read_models
from models.step.kernel_cost import KernelCostConfig
from tests.experiments.commands import ran
from tests.experiments.refusals import Refuses
from tests.refusal import refusal

main = main_of("study")
KERNELS = """\
gpu,operator,batch,m,n,k,width,seconds
Tesla_T4,linear,1,64,128,256,,0.00003
Tesla_T4,softmax,512,,,,1024,0.00004
Tesla_V100-PCIE-32GB,bmm,8,64,64,64,,0.00002
NVIDIA_A100-PCIE-40GB,addu,512,,,,1024,0.00003
"""
MODELS = """\
gpu,model,mode,sequence,batch,parallel,forward_s,backward_s,total_s
Tesla_T4,bert-base,Inference,64,2,,,,0.02
Tesla_V100-PCIE-32GB,GPT2,training,64,4,,0.02,0.04,0.06
NVIDIA H100 80GB HBM3,gpt2,training,64,4,dp4,,,0.03
NVIDIA H100 80GB HBM3,gpt2,training,64,3,dp4,,,0.03
NVIDIA H100 80GB HBM3,gpt2,training,64,4,ring,,,0.03
"""
LAYERS = """\
model,hidden,layers,heads,vocabulary,sequence,gpu,micro_batch,tensor_parallel,layer,forward_s,backward_s
OPT-350M,64,2,4,1000,32,GH-96,2,1,embedding,0.0002,0.000002
OPT-350M,64,2,4,1000,32,GH-96,2,1,block,0.001,0.002
OPT-350M,64,2,4,1000,32,GH-96,2,2,Head,0.001,0.002
OPT-350M,64,2,4,1000,32,RTX-2080,2,2,block,0.001,
"""
TABLES = {"kernels": KERNELS, "models": MODELS, "layers": LAYERS}


def second_each(kernels: Kernels, spec: DeviceSpec) -> Any:
    return np.ones(len(kernels))


@pytest.fixture
def work(work: Path) -> Path:
    for kind, text in TABLES.items():
        (work / f"{kind}.csv").write_text(text)
    return work


def judged(kind: str, *words: str, run: str = "run") -> dict[str, Any]:
    own = f"measured.kind={kind}", f"measured.path={kind}.csv"
    return ran(main, "study=measured", *own, *(words or ["cost=roofline"]), run=run)


# What is read


def test_names_are_read_as_profilers_write_them(work: Path) -> None:
    models = read_models("models.csv")
    assert [row.device.name for row in models[:3]] == ["T4", "V100-PCIe-32GB", "H100"]
    assert [row.model for row in models[:2]] == ["bert_base", "gpt2"]
    assert models[0].mode == "inference"
    assert models[1].parts == (0.02, 0.04)
    layers = read_layers("layers.csv", {"RTX-2080": "RTX-2080Ti"})
    assert layers[-1].device.name == "RTX-2080Ti"
    assert layers[-1].parts.backward_s == 0.0
    assert layers[2].layer == "head"


READERS: dict[str, Callable[[str], object]] = {
    "kernels": read_kernels, "models": read_models, "layers": read_layers,
}  # fmt: skip
FAULTS = [
    ("kernels", "Tesla_T4", "Tesla_T5", "row 1 .*'gpu'.*Tesla_T5"),
    ("kernels", "0.00003", "-1", "row 1 .*'seconds'.*negative"),
    ("kernels", "bmm", "bmn", "row 3 .*'operator'.*'bmn'"),
    ("models", "bert-base", "bert_huge", "row 1 .*'model'.*bert_huge"),
    ("models", "Inference", "guessing", "row 1 .*'mode'.*guessing"),
    ("models", "64,2,", "64,2.5,", "row 1 .*'batch'.*whole"),
    ("models", "total_s", "all_s", "'total_s'.*missing"),
    ("models", "0.02\n", "0\n", "row 1 .*'total_s'.*zero"),
    ("layers", "GH-96,2,1,embedding", "GH-96,0,1,embedding", "row 1 .*'micro_batch'.*zero"),
    ("layers", "Head", "neck", "row 3 .*'layer'.*'neck'"),
    ("layers", "OPT-350M", "RNN", "row 1 .*'model'.*RNN"),
    ("layers", "64,2,4", "64,2,5", "row 1 .*'heads'.*5 does not divide"),
    ("layers", "0.0002", "soon", "row 1 .*'forward_s'.*not a number"),
]


@pytest.mark.parametrize(("kind", "old", "new", "words"), FAULTS)
def test_faults_name_file_row_and_column(
    work: Path, kind: str, old: str, new: str, words: str
) -> None:
    (work / "bad.csv").write_text(TABLES[kind].replace(old, new, 1))
    with refusal(f"bad.csv.*{words}"):
        READERS[kind]("bad.csv")


def test_matrix_cores_compute_exact_products_where_a_device_has_such(work: Path) -> None:
    (work / "amd.csv").write_text(KERNELS.replace("Tesla_T4", "AMD_Instinct_MI100"))
    table = read_kernels("amd.csv")
    assert set(table.kernels.rate[:2]) == {"float32_matrix"}
    assert set(table.kernels.rate[2:]) == {"float32"}


def test_a_column_of_precisions_is_read(work: Path) -> None:
    lines = MODELS.splitlines()[:2]
    (work / "p.csv").write_text(f"{lines[0]},precision\n{lines[1]},BF16\n{lines[1]},\n")
    assert [row.precision for row in read_models("p.csv")] == ["bfloat16", ""]
    (work / "p.csv").write_text(f"{lines[0]},precision\n{lines[1]},int4\n")
    with refusal("'precision'.*'int4'"):
        read_models("p.csv")


# What rows come to

SIZE = TransformerSize("gpt", hidden=64, layers=8, heads=4, vocabulary=1000, sequence=32)
SERVER = Server(device_spec("H100"), second_each)


def seconds(parallel: str, batch: int = 8, mode: str = "training") -> Any:
    return model_seconds(SIZE, mode, batch, Parallel.of(parallel), Execution(), SERVER)


def test_a_whole_model_is_all_its_kernels() -> None:
    for mode in ("inference", "fused inference", "training"):
        size, training = named_size("gpt2", 64), mode == "training"
        execution = Execution(training=training, fused=mode.startswith("fused"))
        passes = [kernels_of_part(size, part, 2, execution) for part in parts_of(size)]
        kernels = sum(len(x) for one in passes for x in one[: 1 + training])
        found = model_seconds(size, mode, 2, Parallel(""), Execution(), SERVER)
        assert found.sum() == kernels
        assert (found[1] > 0) == (mode == "training")


def test_replicas_sum_their_gradients() -> None:
    alone, shared = seconds("", 2), seconds("dp4", 8)
    gradients = 4.0 * sum(parameters_of(SIZE, part) for part in parts_of(SIZE))
    assert shared - alone == pytest.approx([0, SERVER.summed(gradients, 4)])
    assert seconds("dp4", 8, "inference")[1] == 0


def test_shared_blocks_sum_their_activations() -> None:
    tokens = 8 * SIZE.sequence
    one, three = SERVER.summed(4.0 * tokens * SIZE.hidden, 4), 3 * SERVER.summed(4.0 * tokens, 4)
    extra = seconds("tp4") - seconds("")
    assert extra % 1 == pytest.approx([17 * one + three, 17 * one])
    assert 0 < extra[0] // 1 < 20  # kernels that mask tokens of others


def test_micro_batches_pass_through_stages() -> None:
    whole, one = seconds("", 2), seconds("pp4_1", 2)
    assert one == pytest.approx(whole, rel=1e-3)
    four = seconds("pp4_4", 8)
    assert (four > one * 1.7).all()
    assert (four < one * 2.2).all()
    assert seconds("pp4", 8) == pytest.approx(four)


@pytest.mark.parametrize(
    ("text", "found"),
    [("tp4", ("tp", 4, 0)), ("PP-2_8", ("pp", 2, 8)), ("data 4", ("dp", 4, 0)), ("", ("", 1, 0))],
)
def test_forms_of_parallelism(text: str, found: tuple[str, int, int]) -> None:
    assert Parallel.of(text) == Parallel(*found)


@pytest.mark.parametrize("text", ["zero3", "dp0", "4"])
def test_other_forms_are_not_priced(text: str) -> None:
    with pytest.raises(NotPricedError, match=text):
        Parallel.of(text)


def test_links_are_those_of_the_number_of_devices() -> None:
    server = Server(device_spec("RTX-3090"), second_each, {"RTX-3090/2": "NVLink bridge"})
    assert server.link(2).bandwidth > server.link(4).bandwidth
    with refusal("'links'.*'wire'"):
        Server(device_spec("T4"), second_each, {"T4": "wire"}).link(2)


# The command


def test_json_says_errors_breakdowns_and_what_is_not_priced(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = judged("models")
    shown = capsys.readouterr().out
    assert found["rows"] == 5
    assert found["priced"] == 3
    assert [one["row"] for one in found["not_priced"]] == ["row 4 (line 5)", "row 5 (line 6)"]
    assert "not priced: row 5" in shown
    table = pl.read_csv(work / "run" / "predictions.csv")
    priced = table.filter(pl.col("not_priced").fill_null("") == "")
    ratio = priced["predicted_s"] / priced["measured_s"]
    error = 100 * (ratio - 1).abs()
    assert found["mean_absolute_percentage_error"] == pytest.approx(error.mean())
    assert found["median_absolute_percentage_error"] == pytest.approx(error.median())
    assert found["worst_absolute_percentage_error"] == pytest.approx(error.max())
    assert found["geometric_mean_ratio"] == pytest.approx(np.exp(np.log(ratio.to_numpy()).mean()))
    assert {"gpu", "model", "mode", "parallel", "batch", "sequence"} == set(found["by"])
    assert found["by"]["gpu"]["H100"]["rows"] == 1
    assert (work / "run" / "predicted.png").stat().st_size > 10_000
    assert "models.csv" in found["provenance"]["inputs_sha256"]


def test_layers_of_one_device_alone(work: Path) -> None:
    found = judged("layers", "measured.tensor_parallel=1", "cost=roofline")
    assert found["rows"] == 2
    table = pl.read_csv(work / "run" / "predictions.csv")
    assert table["predicted_backward_s"][0] == 0  # the embedding was not run back
    assert set(found["by"]["layer"]) == {"embedding", "block"}


def test_products_use_tf32_where_the_device_has_it(work: Path) -> None:
    fast = judged("layers")
    plain = judged("layers", "cost=roofline", "measured.float32=[opt-350m/gh-96]", run="again")
    assert plain["by"]["gpu"]["RTX-2080Ti"] == fast["by"]["gpu"]["RTX-2080Ti"]
    assert plain["geometric_mean_ratio"] >= fast["geometric_mean_ratio"]


def test_all_kernels_are_priced_by_the_shipped_cost(work: Path) -> None:
    found = judged("kernels", "cost=learned")
    assert found["priced"] == 4
    assert found["mean_absolute_percentage_error"] < 100
    assert set(found["by"]["family"]) == {"linear", "product", "softmax", "elementwise"}


def test_each_gpu_is_left_out_of_a_network_of_its_own(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = KernelCostConfig(members=1, hidden=4, steps=3, batch=4)
    monkeypatch.setattr("experiments.measured.leaving_out.KernelCostConfig", lambda: quick)
    found = judged("kernels", "measured.leave_out=true", "measured.training=.")
    assert set(found["by"]["gpu"]) == {"T4", "V100-PCIe-32GB", "A100-PCIe-40GB"}
    assert found["priced"] == 4
    assert {"kernels.csv", "models.csv"} <= set(found["provenance"]["inputs_sha256"])
    shown = capsys.readouterr().out
    assert all(f"without {gpu}: 3 steps" in shown for gpu in found["by"]["gpu"])


def test_without_a_folder_of_data_the_path_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.delenv("MESHWRIGHT_DATA", raising=False)
    refuses(main, ["study=measured"], "measured.path")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "most", "worst_median"), [("models", 8, 7), ("layers", 14, 9), ("kernels", 15, 10)]
)
def test_the_published_tables(
    data: Path, work: Path, kind: str, most: float, worst_median: float
) -> None:
    name = next((data / "measured").glob(f"{kind}.csv*"))
    words = f"measured.kind={kind}", f"measured.path={name}", "json=true"
    found = ran(main, "study=measured", *words)
    assert found["rows"] == found["priced"]
    assert found[ERRORS[0]] < most
    assert found[ERRORS[1]] < worst_median
