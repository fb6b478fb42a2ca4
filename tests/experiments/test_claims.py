"""Claims: each is complete, its command is ours, and the cheap ones hold when run again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from refusals import told

from envs.files import read_json
from experiments.reporting.claims import (
    Claim,
    Verdict,
    number_at,
    page_of,
    read_claims,
    rerun,
    whole_table,
)
from experiments.run.app import run_job
from tests.paths import CONF, ROOT

CHEAP = [  # seconds each
    "baechi_expert", "cluster_simulators", "contiguous_max_load", "flow_times", "latency_bert24",
    "forest_packing", "moirai_example", "tiresias_known", "tiresias_yarn",
]  # fmt: skip


@pytest.fixture(scope="module")
def known() -> dict[str, Claim]:
    return {claim.name: claim for claim in read_claims()}


def rows() -> dict[str, dict[str, Any]]:
    """The rows of conf as files of their own would have them."""
    table = yaml.safe_load((CONF / "claim_table.yaml").read_text())
    return {
        name: {"subject": subject, **row}
        for subject, named in table.items()
        for name, row in named.items()
    }


def test_every_row_is_shown_in_the_order_of_the_subjects(known: dict[str, Claim]) -> None:
    assert set(known) == set(rows())
    subjects = [claim.subject for claim in known.values()]
    assert list(dict.fromkeys(subjects)) == ["placement", "network", "cluster"]
    table = whole_table(list(known.values()))
    assert len(table.rows) == len(known)
    assert all(cell for row in table.rows for cell in row)
    assert {claim.verdict for claim in known.values()} == set(get_args(Verdict))


def test_the_page_of_claims_is_current(known: dict[str, Claim]) -> None:
    """`python -m experiments.claims` writes it: claims.md of the run folder."""
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf-8") == page_of(
        list(known.values())
    )


def test_a_number_is_found_by_keys_places_and_values() -> None:
    document = {"rules": [{"rule": "a", "mean": 1}, {"rule": "b", "mean": 2.5}], "n": [3, [4]]}
    assert number_at(document, "rules/rule=b/mean") == 2.5
    assert number_at(document, "rules/0/mean") == 1.0
    assert number_at(document, "n/1/0") == 4.0
    for path in ("rules", "rules/rule=c/mean", "rules/7/mean", "x/y", "n/1"):
        told(lambda path=path: number_at(document, path), ["no number", path])


def test_a_figure_is_inside_its_interval_or_not(known: dict[str, Claim]) -> None:
    claim = known["tiresias_known"]  # [1.836, 1.837]
    assert claim.holds(1.8365)
    assert claim.holds(1.837)
    assert not claim.holds(1.8372)
    assert not claim.holds(1.8358)
    exact = known["cluster_simulators"]
    assert exact.holds(18226503.0)
    assert not exact.holds(18226504.0)


def changed(folder: Path, pattern: str, new: str) -> Path:
    """A folder with one claim, of which one line is another."""
    text = yaml.safe_dump(rows()["flow_times"], width=1000, default_flow_style=False)
    assert re.search(pattern, text)
    folder.mkdir(exist_ok=True)
    (folder / "mine.yaml").write_text(re.sub(pattern, lambda _: new, text))
    return folder


FAULTS = {
    "verdict: holds": ("verdict: perhaps", "perhaps"),
    "subject: network": ("subject: stars", "stars"),
    "value: .*": ("value: 1.0", "ascend"),
    "year: 2024": ("year: soon", "year"),
    "takes: .*": ("taks: 1 s", "taks"),
    "command: .*": ("command: rm -rf $HOME", "no command"),
    "claim: .*": ("claim: [", "mine.yaml"),
}


RATIOS = [claim.name for claim in read_claims() if claim.rerun.over is not None]


@pytest.mark.parametrize("name", RATIOS)
def test_a_ratio_that_is_divided_the_other_way_is_refused(name: str, tmp_path: Path) -> None:
    """As `forest_packing` was: its words said one over the other, its commands the reverse."""
    claim = rows()[name]
    again = claim["rerun"]
    again["command"], again["over"] = again["over"], again["command"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(claim))
    told(lambda: read_claims(tmp_path), ["mine.yaml", "measured.what"])


@pytest.mark.parametrize("pattern", FAULTS)
def test_a_file_that_is_no_claim_is_one_line(pattern: str, tmp_path: Path) -> None:
    new, word = FAULTS[pattern]
    folder = changed(tmp_path / "claims", pattern, new)
    told(lambda: read_claims(folder), ["mine.yaml", word])


def test_further_claims_are_taken_in(tmp_path: Path) -> None:
    folder = changed(tmp_path / "claims", "year: 2024", "year: 2025")
    assert "mine" in [claim.name for claim in read_claims(folder)]
    changed(folder, "command: .*", "command: meshwright flows input=flows.csv")
    assert "mine" in [claim.name for claim in read_claims(folder)]
    (folder / "mine.yaml").rename(folder / "flow_times.yaml")
    told(lambda: read_claims(folder), ["name of another claim"])
    told(lambda: read_claims(tmp_path / "absent"), ["no such folder"])


def test_the_app_writes_the_table_and_runs_a_command_again(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "flows.csv").write_text(
        "shard,arrival_ns,size_bytes,src,dst,fct_ns,n_hosts\n0,7.0,1000,0,1,838.4,2\n"
    )
    flow = f"command: python -m experiments.flows input={shlex.quote(str(work / 'flows.csv'))}"
    changed(work / "own", "command: .*", flow)
    arguments = ["folder=own", "rerun=[mine]", "hydra.run.dir=out"]
    assert run_job("claims", arguments) == 0
    told = capsys.readouterr().out
    assert "published" in told
    assert "12,400" in told  # of a claim's words
    result = read_json(work / "out/result.json")
    (again,) = result["reruns"]
    assert again["claim"] == "mine"
    assert again["in_the_interval"] is result["all_in_their_intervals"]
    assert (
        again["value"]
        == read_json(work / "out/reruns/mine/result.json")["largest_relative_difference"]
    )
    for name in ("claims.md", "claims.tex", "claims.html", "table.md"):
        assert "flow" in (work / "out" / name).read_text()
    capsys.readouterr()
    assert run_job("claims", ["rerun=[nobody]", "hydra.run.dir=b"]) == 2
    assert "nobody" in capsys.readouterr().err


def test_what_a_person_reads_is_not_run_again(known: dict[str, Claim], tmp_path: Path) -> None:
    told(lambda: rerun(known["moirai_search"], tmp_path), ["moirai_search", "a person"])


def test_sources_are_complete() -> None:
    for name, row in rows().items():
        assert all(row["source"][key] for key in ("authors", "title", "venue", "year")), name


@pytest.mark.proof
@pytest.mark.parametrize("name", CHEAP)
def test_a_cheap_claim_is_measured_again(
    name: str, known: dict[str, Claim], tmp_path: Path, data: Path
) -> None:
    found = rerun(known[name], tmp_path)
    assert known[name].holds(found), f"{name}: {found}, not in {known[name].interval}"
