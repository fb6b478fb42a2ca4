"""Slots: files there and back, what is refused, and what generators promise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from experiments.papers.dynamic_parallelism.batch_time import transformer
from experiments.papers.dynamic_parallelism.slots import (
    GeneratedSlots,
    Markov,
    SlotFile,
    Walk,
    write_slots,
)
from tests.refusal import refusal

GOOD = "slot,worker,speed,bandwidth,rent\n0,a,1,2,3\n0,b,1,2,3\n1,a,1,2,3\n1,b,0.5,2,0\n"


def generated(change: Markov | Walk) -> GeneratedSlots:
    return GeneratedSlots(5, 40, 8.0, 1e9, change, change, change)


@pytest.mark.parametrize("change", [Markov((1.0, 0.5, 0.2), 0.8), Walk(0.3, 0.2)])
def test_speeds_keep_to_their_limits_and_files_to_the_slots(
    change: Markov | Walk, tmp_path: Path
) -> None:
    slots = generated(change).draw(7)
    speed, full = slots.values[..., 0], np.geomspace(1.0, 1 / 8, 5)
    assert (speed <= full).all()
    assert (speed >= 0.2 * full * (1 - 1e-12)).all()
    assert (speed != generated(change).draw(8).values[..., 0]).any()
    write_slots(slots, tmp_path / "slots.csv")
    again = SlotFile(str(tmp_path / "slots.csv")).draw(9)
    assert again.workers == slots.workers
    np.testing.assert_array_equal(again.values, generated(change).draw(7).values)


def test_a_chain_stays_as_often_as_it_should_and_a_walk_keeps_to_its_step() -> None:
    factors = Markov((1.0, 0.5, 0.2), 0.8).factors(np.random.default_rng(0), 20_000, 2)
    assert np.mean(factors[1:] == factors[:-1]) == pytest.approx(0.8, abs=0.01)
    shares = [np.mean(factors == level) for level in (1.0, 0.5, 0.2)]
    assert shares == pytest.approx([1 / 3] * 3, abs=0.02)
    moved = np.diff(np.log(Walk(0.1, 0.2).factors(np.random.default_rng(0), 5_000, 2)), axis=0)
    assert np.sqrt(np.mean(moved**2)) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("1,a,1,2,3\n", "", "record slot 1: 'a' is missing"),
        ("\n1,", "\n2,", "record slot 1: 'a' is missing"),
        ("1,a,", "1,b,", "row 4 (line 5): field 'worker': 'b' stands twice"),
        ("1,a", "1,", "row 3 (line 4): field 'worker': is missing"),
        ("0.5,", "-0.5,", "row 4 (line 5): field 'speed': '-0.5' is negative"),
        ("0.5,", "0,", "field 'speed': '0' is not positive"),
        ("2,0\n", "2,inf\n", "field 'rent': 'inf' is not finite"),
        ("\n1,b", "\n1.5,b", "field 'slot': '1.5' is not a whole number"),
    ],
)
def test_a_file_that_holds_no_slots_is_refused(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "slots.csv").write_text(GOOD.replace(old, new))
    with refusal("slots.csv") as caught:
        SlotFile(str(tmp_path / "slots.csv")).draw(0)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Markov((), 0.5), "levels"),
        (lambda: Markov((1.0, -0.5), 0.5), "levels"),
        (lambda: Markov((1.0,), 1.5), "stay"),
        (lambda: GeneratedSlots(workers=1), "workers"),
        (lambda: GeneratedSlots(heterogeneity=0.5), "heterogeneity"),
        (lambda: transformer(blocks=0), "blocks"),
        (lambda: Walk(-0.1, 0.5), "step"),
        (lambda: Walk(0.1, 1.0), "least"),
    ],
)
def test_bounds_of_generators(make: Callable[[], object], field: str) -> None:
    with refusal(f"field '{field}'"):
        make()
