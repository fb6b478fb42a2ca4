from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from shipped_workloads import shipped

from envs.cluster.workload.synthetic.arrivals import DAY_S, HOUR_S, SessionShape
from envs.cluster.workload.synthetic.fit import agreement
from envs.cluster.workload.synthetic.generate import TargetLoad, generate
from envs.cluster.workload.synthetic.parameters import (
    Memory,
    WorkloadParameters,
)
from envs.cluster.workload.trace import Trace
from tests.refusal import refusal
from tests.strength import examples

ITP = shipped("itp")
PHILLY = shipped("philly")
DIGESTS = {
    "itp": "23eb5cb3baf93b043e774bc757abdbb321803950e8c012078586e419b26c4437",
    "philly": "d4ffef3a45bf9969a20af84565a8cd5ce7ada4821283d1247166d695e3015c86",
}


def digest(trace: Trace) -> str:
    columns = (trace.submit_s, trace.duration_s, trace.num_gpus.astype(np.int64))
    return hashlib.sha256(
        b"".join(column.astype("<i8").tobytes() for column in columns)
    ).hexdigest()


def test_one_seed_is_one_trace_on_every_machine() -> None:
    assert digest(generate(ITP, 20_000, 0)) == DIGESTS["itp"]
    assert digest(generate(PHILLY, 20_000, 1, load=TargetLoad(0.9, 500))) == DIGESTS["philly"]


@examples(25)
@given(st.integers(1, 400), st.integers(0, 2**40), st.sampled_from([ITP, PHILLY]))
def test_any_number_of_jobs_and_any_seed(
    jobs: int, seed: int, parameters: WorkloadParameters
) -> None:
    trace = generate(parameters, jobs, seed)
    assert (len(trace), trace.submit_s[0]) == (jobs, 0)
    assert digest(trace) == digest(generate(parameters, jobs, seed))
    count = (trace.num_gpus[:, None] == np.array(parameters.gang_sizes)).sum(axis=0)
    assert count.sum() == jobs
    assert (np.abs(count - np.array(parameters.gang_shares) * jobs) < 1 + 1e-4 * jobs).all()


def test_seeds_differ_and_the_load_changes_arrivals_alone() -> None:
    first, second = generate(ITP, 500, 1), generate(ITP, 500, 2)
    assert (first.submit_s != second.submit_s).any()
    assert (first.duration_s != second.duration_s).any()
    loaded = generate(ITP, 500, 1, load=TargetLoad(0.5, 640))
    assert_array_equal(loaded.duration_s, first.duration_s)
    assert_array_equal(loaded.num_gpus, first.num_gpus)


@pytest.mark.parametrize("load", [0.1, 0.9, 3.0])
@pytest.mark.parametrize("parameters", [ITP, PHILLY])
def test_the_load_is_the_one_asked_for(load: float, parameters: WorkloadParameters) -> None:
    trace = generate(parameters, 5000, 3, load=TargetLoad(load, 128))
    work = float(trace.gpu_seconds.sum())
    assert abs(trace.span_s - work / (128 * load)) <= 1
    assert trace.offered_load(128) == pytest.approx(load, rel=1e-4)


def test_under_another_load_days_keep_their_hours() -> None:
    wanted = PHILLY.clock.daily
    trace = generate(PHILLY, 60_000, 5, load=TargetLoad(0.6, 640))
    found = np.bincount(trace.submit_s % DAY_S // HOUR_S, minlength=24)
    assert np.corrcoef(found, wanted)[0, 1] > 0.7
    weekend = np.isin(trace.submit_s // DAY_S % 7, (5, 6)).mean()
    assert weekend == pytest.approx(PHILLY.clock.weekly[5:].sum() / 7, abs=0.08)


def test_like_jobs_come_side_by_side() -> None:
    zero = (0.0,) * len(ITP.gang_sizes)
    shape = SessionShape(length=(1.0,) * len(zero), gap_within=zero, gap_before=zero)
    memory = Memory(strength=0.0, persistence=0.0)
    alone = ITP.model_copy(update={"sessions": shape, "gap_memory": memory})
    found = agreement(generate(ITP, 8000, 0), generate(alone, 8000, 0))
    assert found.same_gang[0] > 0.85
    assert found.same_gang[1] < 0.7
    assert found.duration_memory[0] > 0.5
    assert found.gap_memory[0] > 0.5
    assert found.gap_memory[1] == pytest.approx(0, abs=0.05)
    assert max(found.duration_ks, found.interarrival_ks) < 0.02


def test_models_are_dealt_from_the_names_given() -> None:
    trace = generate(ITP, 3000, 4, models=("bert", "resnet", "vgg"))
    assert trace.model.names == ("bert", "resnet", "vgg")
    assert (np.bincount(trace.model.codes, minlength=3) > 900).all()
    assert generate(ITP, 10, 4)[3].model is None
    assert_array_equal(trace.submit_s, generate(ITP, 3000, 4).submit_s)


def test_bad_requests_are_refused() -> None:
    for jobs, seed in ((0, 0), (5, -1)):
        with refusal():
            generate(ITP, jobs, seed)
    with refusal("all be submitted at once"):
        generate(ITP, 3, 0, load=TargetLoad(1e9, 10**6))
    with refusal("reach no such load"):
        generate(ITP, 1, 0, load=TargetLoad(0.5, 8))
