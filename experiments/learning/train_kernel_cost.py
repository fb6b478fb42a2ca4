"""Train the network that says how long kernels take, and judge it on GPUs that were left out.

python -m experiments.train task=kernel_cost

The folder `kernel_cost` in the run folder is what `cost=learned cost.path=...` takes. With
MESHWRIGHT_DATA unset: measured=<folder with kernels.csv.gz and models.csv>.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from envs.arrays import FloatArray
from envs.bounds import Count
from envs.cost import RooflineCost
from envs.errors import InputError
from envs.graphs.kernels import Kernels
from envs.hardware.devices import DeviceSpec
from experiments.config.targets import build_as
from experiments.learning.trainer import Files, Rounds, Row, Task
from experiments.learning.training import TrainingConfig, begun, run_rounds
from experiments.measured.judging import (
    MEAN,
    MEDIAN,
    errors_of,
    grouped,
    price_kernels,
    price_models,
)
from experiments.measured.judging import Row as Priced
from experiments.measured.leaving_out import Data
from experiments.measured.pricing import LEARNED, ROOFLINE, Cost, Costs
from experiments.reporting.tables import Table, write_tables
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.provenance import portable
from models.step.kernel_cost import LAUNCH_S, Amid, KernelCostConfig, priced
from models.step.kernel_features import Inputs
from models.step.kernel_fit import KernelNetwork, log_share, save_cost

KERNEL_COST = "kernel_cost"  # folder of the fitted one
BOOSTING, UNTRAINED = "gradient boosting", "untrained"
CAPTION = (
    "Of a GPU nothing was learned but its data sheet: all is fitted to the others. Kernels: median "
    "of the absolute error over the measured time. Families: the mean of such medians over linear "
    "layers, batches of products, convolutions, norms, softmaxes and elementwise kernels. Models: "
    "mean absolute error of whole transformers, kernels of eager PyTorch; where they are fused, "
    "errors stand apart and nothing was fitted to them. Gradient boosting sees the same columns. "
    "Roofline: 0.8 of the peaks. Untrained: the network before its first step."
)


@dataclass(kw_only=True)
class TrainKernelCostConfig(TrainingConfig):
    """`conf/task/kernel_cost.yaml`; groups are objects by `_target_`."""

    model: Any
    measured: str
    block: Count
    boosting: Annotated[int, Ge(0)]
    threads: Count = 1  # of torch


class KernelCostTask(Task):
    """A step is a block of optimizer steps of every network: one without each GPU, one of all.

    Args:
        config: the network and how it is fitted.
        data: what it is fitted to.
        block: optimizer steps.
        seed: of the fits.
    """

    columns: Sequence[str] = ("losses/smooth_l1",)
    identity: Mapping[str, Any] = {}
    steps = 0
    outcomes: Sequence[float] = ()

    def __init__(self, config: KernelCostConfig, data: Data, block: int, seed: int) -> None:
        self.data, self.block = data, block
        self.fits = [data.fit(config, seed, without) for without in (*data.devices, None)]
        rows = len(data.kernels.seconds)
        self.identity = {"model": asdict(config), "block": block, "seed": seed, "rows": rows}

    def step(self) -> Row:
        """One block."""
        self.steps += 1
        return {"losses/smooth_l1": float(np.mean([fit.train(self.block) for fit in self.fits]))}

    def costs(self, *, amid: bool) -> Costs:
        """By networks that have not seen a GPU; without `amid`, all kernels are alone."""
        known = {}
        for name, fit in zip(self.data.devices, self.fits[:-1], strict=True):
            shares = fit.network.shares()
            known[name] = partial(priced, shares, self.data.amid(shares, name) if amid else Amid())
        return lambda spec: known[spec.name]

    @property
    def network(self) -> KernelNetwork:
        """That of all."""
        return self.fits[-1].network

    def score(self) -> float:
        """Mean over the GPUs left out of the median error of their kernels."""
        found = kernel_errors(price_kernels(self.data.kernels, self.costs(amid=False)))
        self.outcomes = [one for one, _ in found.values()]
        return float(np.mean(self.outcomes))

    def weights(self) -> Mapping[str, Tensor]:
        return self.network.state_dict()

    def state(self) -> tuple[dict[str, Any], Files]:
        numbers, files = [], {}
        for number, fit in enumerate(self.fits):
            own, arrays = fit.state()
            numbers.append(own)
            files.update({f"{name}_{number}": part for name, part in arrays.items()})
        return {"steps": self.steps, "fits": numbers}, files

    def load(self, numbers: dict[str, Any], files: Files) -> None:
        self.steps = numbers["steps"]
        for number, (fit, own) in enumerate(zip(self.fits, numbers["fits"], strict=True)):
            names = ("weights", "optimizer", "random")
            fit.load(own, {name: files[f"{name}_{number}"] for name in names})


def train_kernel_cost(config: TrainKernelCostConfig, run: Run) -> Result:
    """Fit, save, compare."""
    config, tracking = begun(config, run)
    fitting = build_as(KernelCostConfig, config.model, "model", "model of kernels' times")
    torch.set_num_threads(config.threads)
    data = Data.read(config.measured)
    for row in data.models:
        if row.device.name not in data.devices:
            reason = "is none whose kernels were measured"
            raise InputError(reason, file=data.files[1], record=row.place, field="gpu")
    provenance = run.provenance.with_files(*data.files)
    task = KernelCostTask(fitting, data, config.block, config.seed)
    untrained = task.costs(amid=False)
    rounds = Rounds(-(-fitting.steps // config.block))
    with ProgressDisplay(run.console) as display:
        run_rounds(
            config, tracking, task, rounds, run, display, provenance,
            lambda row: f"loss {row['losses/smooth_l1']:.4f}",
        )  # fmt: skip
    amid = data.amid(task.network.shares())
    save_cost(task.network, amid, run.folder / KERNEL_COST, portable(provenance).document())
    learned, alone = task.costs(amid=True), task.costs(amid=False)
    methods: dict[str, Costs] = {
        LEARNED: learned, ROOFLINE: lambda _: RooflineCost().kernel_seconds, UNTRAINED: untrained
    }  # fmt: skip
    if config.boosting:
        methods[BOOSTING] = boosted(data, config.boosting, config.seed)
    errors = {
        method: kernel_errors(price_kernels(data.kernels, costs))
        for method, costs in methods.items()
    }
    of_models = {LEARNED: learned, "kernels alone": alone, ROOFLINE: methods[ROOFLINE]}
    whole = model_errors(
        {x: price_models(data.models, costs) for x, costs in of_models.items()}, data.devices
    )
    tables = [
        _table(
            f"{what} of a GPU left out",
            {m: {gpu: row[k] for gpu, row in rows.items()} for m, rows in errors.items()},
        )
        for k, what in enumerate(("Kernels", "Families"))
    ]
    tables.append(_table("Models on a GPU left out", whole))
    title = "How long kernels take"
    table_file = write_tables(run, title, tables, provenance, caption=CAPTION)
    mean = {method: np.mean([*rows.values()], axis=0).tolist() for method, rows in errors.items()}
    values: dict[str, object] = {
        "kernels": len(data.kernels.seconds),
        "error": mean[LEARNED][0],
        "error_of_families": mean[LEARNED][1],
        "error_of_models": float(np.nanmean([*whole[LEARNED].values()])),
        "amid": asdict(amid),
        "methods": errors,
        "means": mean,
        "models": whole,
        "kernel_cost": str(run.folder / KERNEL_COST),
        "table": table_file,
        "seconds": run.seconds,
    }
    shown = [key for key in values if key not in ("methods", "means", "models", "amid")]
    return Result(values, provenance, shown)


def boosted(data: Data, iterations: int, seed: int) -> Costs:
    """Gradient boosting of kernels alone, without each GPU."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    def without(device: str) -> Cost:
        rows = data.kept(device)
        boosting = HistGradientBoostingRegressor(
            max_iter=iterations, early_stopping=False, random_state=seed
        )
        boosting.fit(rows.columns.T, log_share(rows.ideal_s, rows.seconds))

        def cost(kernels: Kernels, spec: DeviceSpec, alone: bool = False) -> FloatArray:
            inputs = Inputs(kernels, spec)
            seconds: FloatArray = inputs.ideal_s / np.exp(boosting.predict(inputs.columns.T))
            return seconds + LAUNCH_S

        return cost

    known = {name: without(name) for name in data.devices}
    return lambda spec: known[spec.name]


def kernel_errors(rows: Sequence[Priced]) -> dict[str, tuple[float, float]]:
    """Of each GPU, median absolute error of kernels, and its mean over families."""
    found = {}
    for gpu, own in grouped(rows, "gpu").items():
        families = [errors_of(x)[MEDIAN] for x in grouped(own, "family").values()]
        found[gpu] = errors_of(own)[MEDIAN] / 100.0, float(np.mean(families)) / 100.0
    return found


def model_errors(
    priced: Mapping[str, Sequence[Priced]], devices: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Mean absolute errors of each method on each GPU; NaN where there is no model."""
    found = {}
    for method, rows in priced.items():
        for fused in (False, True):
            name = f"{method}, fused" if fused else method
            own = [x for x in rows if str(x.labels["mode"]).startswith("fused") == fused]
            by = grouped(own, "gpu")
            found[name] = {
                gpu: errors_of(by[gpu])[MEAN] / 100.0 if gpu in by else float("nan")
                for gpu in devices
            }
    return found


def _table(title: str, columns: Mapping[str, Mapping[str, float]]) -> Table:
    """A row for each GPU left out, and one for their mean."""
    whole = [{**x, "mean": float(np.nanmean([*x.values()]))} for x in columns.values()]
    cells = [
        (name, *("" if np.isnan(x[name]) else f"{x[name]:.3f}" for x in whole)) for name in whole[0]
    ]
    return Table(title, ("GPU left out", *columns), cells)
