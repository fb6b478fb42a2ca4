"""Claims: each is short and complete, and the cheap ones hold when run again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import ran
from commands import result as result_of
from refusals import Refuses, refused

from experiments.reporting.claims import number_at, page_of, read_claims, rerun, table_of
from tests.paths import CONF, ROOT

CHEAP = [  # seconds each
    "baechi_expert", "cluster_simulators", "contiguous_max_load", "flow_times", "latency_bert24",
    "forest_packing", "moirai_example", "tiresias_known", "tiresias_yarn",
]  # fmt: skip
ROWS: dict[str, dict[str, Any]] = yaml.safe_load((CONF / "claim_table.yaml").read_text())
CLAIMS = read_claims()
KNOWN = {claim.name: claim for claim in CLAIMS}


def test_every_row_is_shown_the_published_ones_by_year() -> None:
    assert list(KNOWN) == list(ROWS)
    shown = table_of(CLAIMS).rows
    assert len(shown) == len(ROWS)
    assert all(cell for cells in shown for cell in cells)
    assert {claim.verdict for claim in CLAIMS} == {"holds", "in part", "does not", "not comparable"}
    sources = [claim.source for claim in CLAIMS]
    order = [(max(re.findall(r"\b20\d\d\b", x), default="ours"), x) for x in sources]
    assert order == sorted(order)
    assert {x for year, x in order if year == "ours"} == {"this project"}


def test_the_page_of_claims_is_current() -> None:
    """`python -m experiments.claims` writes it: claims.md of the run folder."""
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf-8") == page_of(CLAIMS)


def anchors(page: str) -> set[str]:
    """Those of its headings, as the site numbers them."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").lower()
    titles = re.findall(r"^#+ (.+)$", re.sub(r"[^\w\s#-]", "", text), re.MULTILINE)
    names = [re.sub(r"[\s-]+", "-", title) for title in titles]
    return {*names, *(f"{name}_{names[:n].count(name)}" for n, name in enumerate(names))}


@pytest.mark.parametrize("name", KNOWN)
def test_a_row_is_short_and_the_page_behind_it_exists(name: str) -> None:
    claim = KNOWN[name]
    assert max(len(x.split()) for x in (claim.claim, claim.published)) <= 25
    page, anchor = claim.page.split("#")
    assert anchor in anchors(page)


def test_a_number_is_found_by_keys_places_and_values() -> None:
    document = {"rules": [{"rule": "a", "mean": 1}, {"rule": "b", "mean": 2.5}], "n": [3, [4]]}
    assert number_at(document, "rules/rule=b/mean") == 2.5
    assert number_at(document, "rules/0/mean") == 1.0
    assert number_at(document, "n/1/0") == 4.0
    for path in ("rules", "rules/rule=c/mean", "rules/7/mean", "x/y", "n/1"):
        refused(lambda path=path: number_at(document, path), ["no number", path])


def test_a_figure_is_inside_its_interval_or_not() -> None:
    claim = KNOWN["tiresias_known"]  # [1.836, 1.837]
    assert [claim.holds(x) for x in (1.8365, 1.837, 1.8372, 1.8358)] == [True, True, False, False]
    exact = KNOWN["cluster_simulators"]
    assert [exact.holds(x) for x in (18226503.0, 18226504.0)] == [True, False]


def changed(folder: Path, pattern: str, new: str) -> Path:
    """A folder with one claim, of which one line is another."""
    text = yaml.safe_dump(ROWS["flow_times"], width=1000, default_flow_style=False)
    assert re.search(pattern, text)
    folder.mkdir(exist_ok=True)
    (folder / "mine.yaml").write_text(re.sub(pattern, lambda _: new, text))
    return folder


@pytest.mark.parametrize("name", [name for name in ROWS if "over" in ROWS[name]["rerun"]])
def test_a_ratio_that_is_divided_the_other_way_is_refused(name: str, tmp_path: Path) -> None:
    """As `forest_packing` was: its words said one over the other, its commands the reverse."""
    again = ROWS[name]["rerun"]
    swapped = {**again, "command": again["over"], "over": again["command"]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**ROWS[name], "rerun": swapped}))
    refused(lambda: read_claims(tmp_path), ["mine.yaml", "measured.what"])


FAULTS = {
    "verdict: holds": ("verdict: perhaps", "perhaps"),
    "source: .*": ("subject: network", "subject"),
    "value: .*": ("value: 1.0", "ascend"),
    "low: .*": ("low: soon", "low"),
    "takes: .*": ("taks: 1 s", "taks"),
    "command: .*": ("command: rm -rf $HOME", "no command"),
    "conditions: .*": (f"conditions: {'many ' * 26}", "25 words"),
    "claim: .*": ("claim: [", "mine.yaml"),
}


@pytest.mark.parametrize("pattern", FAULTS)
def test_a_file_that_is_no_claim_is_one_line(pattern: str, tmp_path: Path) -> None:
    new, word = FAULTS[pattern]
    folder = changed(tmp_path / "claims", pattern, new)
    refused(lambda: read_claims(folder), ["mine.yaml", word])


def test_further_claims_are_taken_in(tmp_path: Path) -> None:
    folder = changed(tmp_path / "claims", "command: .*", "command: meshwright evaluate flows=a.csv")
    assert [claim.name for claim in read_claims(folder)] == [*KNOWN, "mine"]
    (folder / "mine.yaml").rename(folder / "flow_times.yaml")
    refused(lambda: read_claims(folder), ["name of another claim"])
    refused(lambda: read_claims(tmp_path / "absent"), ["no such folder"])


def test_the_command_writes_the_table_and_runs_a_row_again(
    work: Path, capfd: pytest.CaptureFixture[str], refuses: Refuses
) -> None:
    (work / "flows.csv").write_text(
        "shard,arrival_ns,size_bytes,src,dst,fct_ns,n_hosts\n0,7.0,1000,0,1,838.4,2\n"
    )
    flows = f"command: python -m experiments.evaluate flows={shlex.quote(str(work / 'flows.csv'))}"
    changed(work / "own", "command: .*", flows)
    result = ran("claims", "folder=own", "rerun=[mine]", run="out")
    said = capfd.readouterr().out
    assert "published" in said
    assert "12,400" in said  # of a claim's words
    (again,) = result["reruns"]
    found = result_of("out/reruns/mine")["largest_relative_difference"]
    assert (again["claim"], again["value"]) == ("mine", found)
    assert again["in_the_interval"] is result["all_in_their_intervals"]
    for name in ("claims.md", "claims.tex", "claims.html", "table.md"):
        assert "flow" in (work / "out" / name).read_text()
    refuses("claims", ["rerun=[nobody]"], "nobody")


def test_what_a_person_reads_is_not_run_again(tmp_path: Path) -> None:
    refused(lambda: rerun(KNOWN["moirai_search"], tmp_path), ["moirai_search", "a person"])


@pytest.mark.proof
@pytest.mark.parametrize("name", CHEAP)
def test_a_cheap_claim_is_measured_again(name: str, tmp_path: Path, data: Path) -> None:
    found = rerun(KNOWN[name], tmp_path)
    assert KNOWN[name].holds(found), f"{name}: {found}, not in {KNOWN[name].figure}"
