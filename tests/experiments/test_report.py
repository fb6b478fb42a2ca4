"""Reports: tables in three forms, seeds together, names that are markup, folders that are none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from commands import ran
from refusals import Refuses, refused
from run_folders import metrics, run_folder, step_result

from experiments.config.command_words import listed
from experiments.reporting.page import Page
from experiments.reporting.run_folder import LARGEST
from experiments.reporting.tables import Table, markdown_table, read_tables
from experiments.studies.comparison import Comparison
from experiments.studies.report import comparisons, read_folders

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">|a&b'


class Elements(HTMLParser):
    """The elements of a page, its texts, and the content of its scripts by id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1] if self.tags else ("", {})
        if tag == "script" and attributes.get("id"):
            name = str(attributes["id"])
            self.scripts[name] = self.scripts.get(name, "") + data
        elif tag != "script":
            self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def hand_made() -> Table:
    return Table("Plans & <more>", ("who", "ms"), [["a_b|c", "1.5 ± 0.5"], ["<i>", "2"]], "50 %")


def test_a_table_in_markdown_and_latex() -> None:
    assert hand_made().markdown() == (
        "## Plans & &lt;more&gt;\n\n| who | ms |\n| --- | ---: |\n"
        "| a_b\\|c | 1.5 ± 0.5 |\n| &lt;i&gt; | 2 |\n\n50 %\n"
    )
    assert hand_made().latex() == (
        "\\begin{table}\n\\caption{Plans \\& $<$more$>$. 50 \\%}\n\\begin{tabular}{lr}\n\\toprule\n"
        "who & ms \\\\\n\\midrule\na\\_b$|$c & 1.5 $\\pm$ 0.5 \\\\\n$<$i$>$ & 2 \\\\\n"
        "\\bottomrule\n\\end{tabular}\n\\end{table}\n"
    )


def test_a_table_in_html_links_its_numbers_to_their_run() -> None:
    page = Page("title", "about")
    page.table(hand_made(), ["run-1", "run-2"])
    found = Elements(page.html({}))
    assert [a["href"] for a in found.named("a")] == ["#run-1", "#run-2"]
    texts = [text.strip() for text in found.texts]
    assert texts[texts.index("who") : texts.index("2") + 1] == [
        "who", "ms", "a_b|c", "1.5 ± 0.5", "<i>", "2",
    ]  # fmt: skip


def test_what_is_written_as_markdown_is_read_again() -> None:
    own = hand_made()
    text = f"<!-- {{}} -->\n\n# All\n\n{own.markdown()}\n{markdown_table(('x', 'y'), [['1', '']])}"
    first, second = read_tables(text)
    assert first == Table(own.title, list(own.columns), [list(row) for row in own.rows], own.note)
    assert (list(second.columns), list(second.rows)) == (["x", "y"], [["1", ""]])


def compared(*folders: Path) -> list[Comparison]:
    return list(comparisons(read_folders(list(map(str, folders)))))


def test_seeds_of_one_config_are_a_mean_and_what_differs_tells_runs_apart(tmp_path: Path) -> None:
    for seed, seconds in enumerate((0.150, 0.170)):
        run_folder(tmp_path / str(seed), step_result(seconds), seed=seed, config="agent: {a: 1}\n")
    run_folder(tmp_path / "x", step_result(0.125, "milp"), config="agent: {a: 2}\n")
    run_folder(tmp_path / "y", step_result(0.5) | {"graph": "bert"}, config="agent: {a: 1}\n")
    (found,) = compared(*(tmp_path / name for name in ("0", "1", "x", "y")))
    assert [item.problem for item in found.items] == ["gpt2, mixed", "bert, mixed"]
    rows = {found.name(entry): found.means[entry].tolist() for entry in found.entries}
    assert rows.pop("heft, agent.a=1") == pytest.approx([0.16, 0.5])
    (milp,) = rows.values()
    assert milp[0] == 0.125
    assert np.isnan(milp[1])


def test_a_study_stands_by_its_own_tables(work: Path, refuses: Refuses) -> None:
    study = {"title": "Toy", "solvers": ["dp", "contiguous"], "words": ["env=placement_toy"]}
    (work / "toy.yaml").write_text(json.dumps(study))
    ran("study", "study=toy.yaml", run="one")
    run_folder(work / "b", step_result(0.3))
    result = ran("report", "runs=[one,b]", run="out")
    assert (result["runs"], result["sections"]) == (2, 2)
    text = (work / "out/report.md").read_text()
    own = (work / "one/table.md").read_text().split("## Solvers")[1].split("## ")[0]
    assert own.strip() in text
    (work / "one/values.parquet").write_bytes(b"PAR1")
    refuses("report", ["runs=[one]"], "values.parquet")


def test_names_that_are_markup_are_texts(work: Path) -> None:
    config = f"agent: {json.dumps(HOSTILE)}\n"
    first = run_folder(work / "a", step_result(0.2, HOSTILE) | {"graph": HOSTILE}, config=config)
    second = run_folder(work / "b", step_result(0.3, "x") | {"graph": HOSTILE}, config="b: 1\n")
    column = HOSTILE.replace('"', "")
    (first / "metrics.csv").write_text(f"step,{column}\n1,2\n2,3\n")
    ran("report", *listed("runs", [str(first), str(second), "title='<title>'"]), run="out")
    page = Elements((work / "out" / "report.html").read_text())
    assert not [image for image in page.named("img") if not image["src"].startswith("data:")]  # type: ignore[union-attr]
    assert not [attributes for _, attributes in page.tags if "onerror" in attributes]
    assert any(HOSTILE in text for text in page.texts)
    plots = [name for name in page.scripts if name.endswith("-data")]
    assert len(plots) == len([a for a in page.named("div") if a.get("class") == "plot"]) == 1
    executed = [a for a in page.named("script") if a.get("type") != "application/json"]
    assert len(executed) == 2  # the library, and ours
    for name in plots:
        spec = page.scripts[name]
        assert "<" not in spec
        assert json.loads(spec)["data"]
    drawn = "".join(json.dumps(json.loads(page.scripts[name])) for name in plots)
    assert "<img" not in drawn  # what plotly would read as markup is escaped as well
    assert "<b onclick" not in drawn
    policy = str(page.named("meta")[1]["content"])
    assert "'unsafe-inline'" not in policy.split("script-src")[1]
    assert "<script>alert" not in (work / "out" / "report.md").read_text().split("## Runs")[0]


def test_the_three_forms_hold_the_same_rows(work: Path) -> None:
    for name, seconds in (("a", 0.2), ("b", 0.3)):
        folder = run_folder(work / name, step_result(seconds, name), config=f"agent: {name}\n")
        (folder / "metrics.csv").write_text(metrics())
        (folder / "table.md").write_text(
            f"# Own\n\n{Table('T', ('k', 'v'), [['q', name]]).markdown()}"
        )
    result = ran("report", "runs=[a,b]", run="out")
    texts = [(work / "out" / f"report.{end}").read_text() for end in ("html", "md", "tex")]
    for text in texts:
        assert "1.5" in text
        assert "python -m experiments.evaluate seed=0" in text
    assert '"schema_version"' in texts[2].splitlines()[0]
    assert "agent: b" in texts[0]  # the config
    assert (result["runs"], result["sections"], result["figures"]) == (2, 1, 3)


def _linked(folder: Path) -> None:
    (folder / "result.json").rename(folder / "elsewhere.json")
    (folder / "result.json").symlink_to(folder / "elsewhere.json")


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "metrics.csv")


def _text(name: str, text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_text(text)

    return write


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no result": (lambda folder: (folder / "result.json").unlink(), "no finished run"),
    "a link": (_linked, "result.json"),
    "a pipe": (_pipe, "no regular file"),
    "no JSON": (_text("result.json", "{"), "is not JSON"),
    "deep": (_text("result.json", "[" * 100_000), "is not JSON"),
    "half a character": (_text("result.json", '{"agent": "\\ud800"}'), "half a character"),
    "a list": (_text("result.json", "[]"), "is no mapping"),
    "no YAML": (_text("config.yaml", "a: [\n"), "cannot be read"),
    "words": (_text("metrics.csv", "a,b\n1,x\n"), "metrics"),
    "ragged": (_text("metrics.csv", "a,b\n1\n"), "metrics"),
    "large": (_text("config.yaml", "#" * (LARGEST["config.yaml"] + 1)), "1,000,000"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_folder_that_is_none_is_one_line(fault: str, tmp_path: Path) -> None:
    break_it, word = FAULTS[fault]
    folder = run_folder(tmp_path / "a", step_result(0.2))
    break_it(folder)

    def read() -> None:
        (found,) = read_folders([str(folder)])
        list(comparisons([found]))
        assert found.metrics is None

    assert str(folder) in refused(read, [word])


def test_folders_that_are_absent_or_named_twice_are_one_line(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a", step_result(0.2))
    refused(lambda: read_folders([str(tmp_path / "b")]), ["no such run folder"])
    refused(lambda: read_folders([str(folder), f"{folder}/../a"]), ["named twice"])
    refused(lambda: read_folders([]), ["runs"])


def test_words_without_a_key_are_run_folders() -> None:
    assert listed("runs", ["a b", "seed=1", "it's", "--help", "--config-dir", "c"]) == [
        "runs=['a b','it\\'s']", "seed=1", "--help", "--config-dir=c",
    ]  # fmt: skip
