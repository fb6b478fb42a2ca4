"""A learned predictor: its folder, and the interference model of a cluster that it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file

from envs.arrays import FloatArray, IntArray
from envs.cluster.interference.cases import Cases
from envs.cluster.interference.rates import ON_GPU, SPANNING, RateModel
from envs.cluster.interference.tabulated import TabulatedRates
from envs.cluster.workload.trace import Trace
from envs.errors import InputError, in_one_line, require_one_of
from models.artifacts import atomic_folder, read_checked_spec, save_weights, write_spec
from models.interference.fit import Fitted, InterferenceNetwork
from models.interference.measurements import MeasuredJob, Measurements

KIND, SCHEMA_VERSION = "meshwright.interference", 1
WEIGHTS_FILE, SPEC_FILE = "weights.safetensors", "spec.json"
PROFILES = "profiles"  # the tensor of profiles among the weights
PREDICTORS = "predictors"  # the folder of a run in which predictors lie, by source
AT_ONCE = 4096  # sets of neighbours evaluated at a time


@dataclass(frozen=True, eq=False)
class InterferencePredictor:
    """Rates of known jobs beside sets of known jobs.

    Args:
        source: name of the measurements.
        scope: who is a neighbour: `rates.ON_GPU` or `SPANNING`.
        tables: names of the T tables.
        jobs: P jobs.
        profiles: (T, P, F) standardised.
        network: M networks.
    """

    source: str
    scope: int
    tables: tuple[str, ...]
    jobs: tuple[MeasuredJob, ...]
    profiles: torch.Tensor
    network: InterferenceNetwork

    def table(self, name: str) -> int:
        """The number of a table.

        Raises:
            InputError: there is no such table.
        """
        require_one_of(name, self.tables, field="table")
        return self.tables.index(name)

    def rates(self, table: int, own: IntArray, neighbours: IntArray) -> FloatArray:
        """(B,) mean rates of the ensemble, for (B,) jobs and (B, L) neighbours, -1: none."""
        profiles = self.profiles[table].expand(self.network.networks, -1, -1)
        parts = (torch.from_numpy(at).split(AT_ONCE) for at in (own, neighbours))
        with torch.inference_mode():
            found = [self.network(profiles, *part).mean(dim=0) for part in zip(*parts, strict=True)]
        rates: FloatArray = torch.cat(found).numpy().astype(np.float64)
        return rates

    def assign(self, trace: Trace, seed: int) -> IntArray:
        """(J,) the known job that stands for every job of a trace.

        By its label, or one drawn by seed. Of the measured gang sizes the next smaller one stands
        in, or the smallest; of its placements the one on the fewest nodes.

        Raises:
            InputError: a job has a label that the predictor does not know.
        """
        labels = tuple(dict.fromkeys(job.label for job in self.jobs))
        cases = Cases.of(trace, labels, seed)
        measured = [(job.label, job.gpus, job.nodes) for job in self.jobs]
        return cases.rows(measured, 1)[cases.of_job]


def predictor_of(measurements: Measurements, fitted: Fitted) -> InterferencePredictor:
    """The predictor of an ensemble that was fitted to a fold."""
    profiles = torch.tensor(fitted.task.fold.inputs, dtype=torch.float32).contiguous()
    network = _network(fitted.weights, profiles.shape[-1])
    return InterferencePredictor(
        measurements.name, measurements.scope, measurements.tables, measurements.jobs, profiles,
        network,
    )  # fmt: skip


def _network(weights: Mapping[str, torch.Tensor], inputs: int) -> InterferenceNetwork:
    networks, _, hidden = weights["embed"].shape
    network = InterferenceNetwork(networks, inputs, hidden, torch.Generator())
    network.load_state_dict(dict(weights))
    return network.eval()


def save_predictor(
    predictor: InterferencePredictor,
    folder: Path,
    described: Mapping[str, object],
    provenance: Mapping[str, object],
) -> None:
    """Write the folder whole; `described` are further keys of the spec: probes, intervals, ..."""
    with atomic_folder(folder) as temporary:
        save_weights(predictor.network, temporary / WEIGHTS_FILE, profiles=predictor.profiles)
        spec = {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "units": {"rate": "share of the throughput alone"},
            "source": predictor.source,
            "scope": predictor.scope,
            "tables": list(predictor.tables),
            "jobs": [asdict(job) for job in predictor.jobs],
            **described,
            "provenance": dict(provenance),
        }
        write_spec(temporary, spec)


def find_predictor(path: str | Path, source: str) -> Path:
    """The folder of a predictor: `path` itself, or that of `source` in a run or in its folder.

    Raises:
        InputError: there is none.
    """
    root = Path(path)
    for folder in (root, root / source, root / PREDICTORS / source):
        if (folder / SPEC_FILE).is_file():
            return folder
    raise InputError(f"holds no predictor of source {source!r}", file=path)


def load_predictor(folder: Path) -> InterferencePredictor:
    """Read a folder that `save_predictor` wrote.

    Raises:
        InputError: naming the file that is missing, damaged, or of another kind or version.
    """
    path = folder / SPEC_FILE
    spec = read_checked_spec(folder, KIND, SCHEMA_VERSION, [WEIGHTS_FILE])
    try:
        tensors = load_file(folder / WEIGHTS_FILE)
        profiles = tensors.pop(PROFILES)
        jobs = TypeAdapter(tuple[MeasuredJob, ...]).validate_python(spec["jobs"])
        tables = tuple(map(str, spec["tables"]))
        if profiles.shape[:2] != (len(tables), len(jobs)):
            raise ValueError("shape of profiles")
        if spec["scope"] not in {ON_GPU, SPANNING}:
            raise ValueError(f"scope {spec['scope']!r}")
        return InterferencePredictor(
            str(spec["source"]), int(spec["scope"]), tables, jobs, profiles,
            _network(tensors, profiles.shape[-1]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        cause = in_one_line(error)
        raise InputError(f"does not fit {WEIGHTS_FILE} ({cause})", file=path) from error


class LearnedInterference(TabulatedRates):
    """Rates that `models.interference.fit` predicts, for up to `largest` neighbours.

    Jobs are neighbours as in the measurements: on one partial GPU (Gavel's), or on several nodes
    with a node in common (DeepShare's). Whether jobs fit into the memory of a GPU together is not
    predicted: all sets of neighbours count as feasible.

    Args:
        path: a run of `experiments.train task=interference`, or the folder of a predictor.
        source: which of the run's predictors: gavel or deepshare.
        table: conditions: a GPU type of Gavel's tables, or deepshare.
        largest: of the sets of neighbours that are tabulated: 1, 2 or 3.
        alone: speed and locality of jobs without neighbours.
        seed: of the jobs without a model.

    Raises:
        InputError: the folder or one of the values is wrong.
    """

    def __init__(
        self,
        path: str,
        source: str = "gavel",
        table: str = "v100",
        largest: int = 2,
        *,
        alone: RateModel,
        seed: int = 0,
    ) -> None:
        predictor = load_predictor(find_predictor(path, source))
        predict = partial(predictor.rates, predictor.table(table))
        known, scope = len(predictor.jobs), predictor.scope
        super().__init__("learned", predict, known, predictor.assign, alone, largest, scope, seed)


class PredictedPairs:
    """Pairs of jobs on a GPU as `models.interference.fit` predicts them, by the jobs' labels.

    Args:
        path: a run of `experiments.train task=interference`, or the folder of a predictor.
        source: which of the run's predictors: gavel.
        table: conditions: a GPU type of its tables.

    Raises:
        InputError: the folder or one of the values is wrong, or the predictor is of other pairs.
    """

    def __init__(self, path: str, source: str = "gavel", table: str = "v100") -> None:
        self.predictor = load_predictor(find_predictor(path, source))
        self.table = self.predictor.table(table)
        if self.predictor.scope != ON_GPU:
            raise InputError(f"{source!r} is not of jobs that share a GPU", field="source")

    def __call__(self, models: Sequence[str]) -> FloatArray:
        """(M, M) rate of the first beside the second, at most 1.

        Raises:
            InputError: the predictor does not know a model.
        """
        known = {job.label: number for number, job in enumerate(self.predictor.jobs)}
        if unknown := [model for model in models if model not in known]:
            raise InputError(f"knows no {unknown[0]!r}", field="predicted")
        rows = np.array([known[model] for model in models])
        own, beside = np.repeat(rows, len(rows)), np.tile(rows, len(rows))[:, None]
        return np.minimum(self.predictor.rates(self.table, own, beside), 1.0).reshape(len(rows), -1)
