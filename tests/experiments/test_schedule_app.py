"""`experiments.schedule`, from the command line to the result file."""

from __future__ import annotations

from pathlib import Path

from commands import ran
from refusals import Refuses

TIMES = ["forward=10", "input_gradient=12", "weight_gradient=8", "communication=1"]


def test_a_published_schedule(work: Path) -> None:
    found = ran("schedule", "name=1f1b", "ranks=4", "micro_batches=8", "chunks=1", *TIMES)
    assert (found["makespan"], found["max_rank_span"]) == (346, 346)
    assert found["peak_live_until_w"] == found["peak_live_until_i"] == [4, 3, 2, 1]
    assert (found["method"], found["work_per_rank"]) == ("published", 240)
    assert Path(found["picture"]).read_bytes().startswith(b"\x89PNG")
    assert "rank" in (work / "run" / "table.md").read_text()


def test_a_search_under_a_limit_of_memory(work: Path) -> None:
    words = ["name=zb_v", "ranks=2", "micro_batches=4", "memory_limit=min", "tries=500"]
    found = ran("schedule", *words)
    assert (found["method"], found["max_rank_span"]) == ("search", 26)
    assert max(found["peak_live_until_i"]) <= 3


def test_zero_bubble_h2_shortens_the_span_only(work: Path) -> None:
    found = ran("schedule", "name=zb_h2", "ranks=4", "micro_batches=8", "tries=100")
    assert (found["max_rank_span"], found["makespan"], found["status"]) == (24, 27, "optimal")


def test_a_key_with_the_name_of_a_group_is_not_swept(
    refuses: Refuses,
) -> None:
    said = "config key 'communication': cannot be swept"
    refuses("schedule", ["-m", "communication=0,1"], said)
