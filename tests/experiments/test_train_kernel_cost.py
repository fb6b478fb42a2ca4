"""`experiments.train task=kernel_cost`, from command line to a plan by what was learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from envs.cost import RooflineCost
from envs.graphs.storage import save_graph
from envs.hardware.devices import device_spec
from experiments.learning.train_kernel_cost import KernelCostTask
from experiments.measured.leaving_out import Data
from experiments.measured.pricing import row_seconds
from experiments.measured.tables import read_kernels, read_models
from experiments.plan import main as plan
from experiments.train import main
from models.step.kernel_cost import KernelCostConfig
from tests.experiments.commands import ran, result, working_in
from tests.experiments.layered_step import layered_step
from tests.experiments.refusals import Refuses

KERNELS_FILE, MODELS_FILE = "kernels.csv.gz", "models.csv"
GPUS = ("Tesla_V100-PCIE-32GB", "Tesla_T4", "Tesla_P4")
HEAD = (
    "gpu,operator,batch,m,n,k,width,in_channels,out_channels,kernel_size,input_size,stride,padding"
)
SMALL = [
    "task=kernel_cost", "measured=.", "model.members=2", "model.hidden=8", "model.steps=60",
    "model.batch=32", "block=20", "boosting=0",
]  # fmt: skip


def write_tables(folder: Path) -> None:
    """Kernels and models at half of their rooflines' speed."""
    rng, rows = np.random.default_rng(0), []
    for gpu in GPUS:
        for number in range(40):
            m, n, k = rng.integers(64, 4096, 3)
            rows += [f"{gpu},linear,1,{m},{n},{k},,,,,,,", f"{gpu},add,{m},,,,{n},,,,,,"]
            if number % 4 == 0:
                rows.append(f"{gpu},conv,4,,,,,{n},64,3,{m % 100 + 3},1,1")
    path = folder / KERNELS_FILE.removesuffix(".gz")
    path.write_text("\n".join([f"{HEAD},seconds", *(f"{row},1" for row in rows)]))
    seconds = 2 * read_kernels(str(path)).predicted(RooflineCost().kernel_seconds)
    lines = [f"{row},{x}" for row, x in zip(rows, seconds, strict=True)]
    path.write_text("\n".join([f"{HEAD},seconds", *lines]))
    path.rename(folder / KERNELS_FILE)
    runs = [
        f"{gpu},bert_large,{mode},512,2"
        for gpu in GPUS
        for mode in ("inference", "training", "fused inference")
    ]
    path = folder / MODELS_FILE
    seconds = np.ones(len(runs))
    for _ in range(2):
        lines = [f"{run},{x}" for run, x in zip(runs, seconds, strict=True)]
        path.write_text("\n".join(["gpu,model,mode,sequence,batch,total_s", *lines]))
        found = read_models(str(path))
        seconds = np.array(
            [2 * row_seconds(row, RooflineCost().kernel_seconds).sum() for row in found]
        )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables and the folder `run` of a training on them."""
    folder = tmp_path_factory.mktemp("kernel_cost")
    write_tables(folder)
    with working_in(folder):
        ran(main, *SMALL)
    return folder


def test_gpus_left_out_are_in_table_and_result(made: Path) -> None:
    found = result(made / "run")
    names = {device_spec(gpu).name for gpu in GPUS}
    assert set(found["methods"]) == {"learned", "roofline", "untrained"}
    assert all(set(rows) == names for rows in found["methods"].values())
    assert found["error"] == pytest.approx(
        np.mean([x for x, _ in found["methods"]["learned"].values()])
    )
    assert found["error"] < found["means"]["untrained"][0]
    assert found["means"]["roofline"] == pytest.approx([0.5, 0.5], abs=1e-3)
    assert found["models"]["roofline"]["T4"] == pytest.approx(0.5, abs=1e-3)
    assert set(found["provenance"]["inputs_sha256"]) == {KERNELS_FILE, MODELS_FILE}
    assert "| T4 |" in (made / "run/table.md").read_text()


def test_a_plan_is_made_by_it(made: Path, work: Path) -> None:
    save_graph(layered_step(6, 2), work / "graph.npz")
    asked = ["graph=graph.npz", "topology=mixed_v100_p100", "agent=heft", "cost=learned"]
    times = []
    for number, more in enumerate(([], [f"cost.path={made / 'run/kernel_cost'}"])):
        found = ran(plan, *asked, *more, run=f"plan{number}")
        assert "learned cost" in found["provenance"]["inputs_sha256"]
        times.append(found["objective"])
    assert times[0] != times[1]


def test_a_task_that_is_taken_up_again_is_the_one_left_alone(made: Path) -> None:
    data = Data.read(made)
    config = KernelCostConfig(members=2, hidden=4, steps=20, batch=16)
    whole, begun, resumed = (KernelCostTask(config, data, 5, 0) for _ in range(3))
    for task in (whole, whole, begun):
        task.step()
    resumed.load(*begun.state())
    resumed.step()
    assert (resumed.steps, resumed.identity) == (whole.steps, whole.identity)
    assert resumed.score() == whole.score()
    for name, weight in whole.weights().items():
        assert torch.equal(weight, resumed.weights()[name])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("measured=nowhere", "nowhere"),
        ("model.hidden=0", "model.hidden"),
        ("model.steps=0", "model.steps"),
        ("block=0", "block"),
    ],
)
def test_bad_settings_are_told_in_one_line(
    made: Path, refuses: Refuses, given: str, message: str
) -> None:
    refuses(main, [*SMALL, f"measured={made}", given], message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("Tesla_P4", "Tesla_V100-SXM2-16GB"), "none whose kernels"),
        (("bert_large", "bert_huge"), "model"),
        (("training", "guessing"), "mode"),
    ],
)
def test_bad_rows_of_models_are_told(
    made: Path,
    work: Path,
    refuses: Refuses,
    change: tuple[str, str],
    message: str,
) -> None:
    (work / KERNELS_FILE).symlink_to(made / KERNELS_FILE)
    (work / MODELS_FILE).write_text((made / MODELS_FILE).read_text().replace(*change))
    refuses(main, SMALL, message)
