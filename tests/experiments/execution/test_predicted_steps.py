"""What actions took is found again in a recording, and plays as it was recorded."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans_of_layers import PLANS, write

from envs.step.pipeline import Work, play
from experiments.execution.executing import Measured, measured
from experiments.execution.split import Split, read_split

FOLDER = Path(mkdtemp())
SPLITS = [read_split(write(FOLDER, name)) for name in PLANS]
seconds = st.floats(0.5, 2.0)


@given(st.data(), st.sampled_from(SPLITS))
def test_a_recording_is_played_again(data: st.DataObject, split: Split) -> None:
    """The runtime takes 0.1 s after each action, and 0.2 s more from rank to rank."""
    stages = range(len(split.rank))
    taken = {(work, stage): data.draw(seconds) for work in Work for stage in stages}
    none = (0.0,) * len(stages)
    truth = Measured(
        split.rank, split.micro_batches, none, none, none, 0.2, (tuple(stages),), taken, 0.1
    )
    played = play(truth, split.orders)
    recording = [[bar._replace(finish=bar.finish - 0.1) for bar in row] for row in played.bars]
    found = measured(split, [recording])
    for key, value in found.taken.items():
        assert value == pytest.approx(truth.taken[key])
    exact = found.overhead == pytest.approx(0.1) and found.communication == pytest.approx(0.2)
    again = play(found, split.orders)
    assert again.makespan == pytest.approx(played.makespan, rel=1e-9 if exact else 0.15)


def test_gaps_are_told_apart() -> None:
    """A rank that waits for a forward pass waits for its transfer, one that is behind does not."""
    split = read_split(write(FOLDER, "gpipe"))
    taken = {(work, stage): 1.0 + (work is Work.BACKWARD) for work in Work for stage in (0, 1)}
    none = (0.0, 0.0)
    truth = Measured((0, 1), split.micro_batches, none, none, none, 0.2, ((0, 1),), taken, 0.1)
    played = play(truth, split.orders)
    found = measured(split, [[[b._replace(finish=b.finish - 0.1) for b in r] for r in played.bars]])
    assert (found.overhead, found.communication) == (pytest.approx(0.1), pytest.approx(0.2))
    assert found.taken == pytest.approx({key: taken[key] for key in found.taken})
