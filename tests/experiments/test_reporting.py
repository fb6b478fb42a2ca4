"""Reports: tables in three forms, seeds together, names that are markup, folders that are none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from refusals import told
from run_folders import metrics, run_folder, step_result, timeline

from envs.files import read_json
from experiments.config.command_words import listed
from experiments.reporting.figures import gantt, learning_curve, ranking
from experiments.reporting.page import Page
from experiments.reporting.report import Report
from experiments.reporting.run_folder import LARGEST, RunFolder
from experiments.run.app import run_job
from experiments.reporting.tables import Table, markdown_table, read_tables

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


def test_seeds_of_one_config_are_a_mean_with_its_interval(tmp_path: Path) -> None:
    for seed, seconds in enumerate((0.150, 0.170)):
        run_folder(tmp_path / str(seed), step_result(seconds), seed=seed, config="a: 1\n")
    run_folder(tmp_path / "other", step_result(0.125, "milp"), config="a: 2\n")
    reported = Report.of([tmp_path / name for name in ("0", "1", "other")])
    assert [len(job.runs) for job in reported.jobs] == [2, 1]
    (sheet,) = reported.sheets
    rows = [dict(zip(sheet.table.columns, row, strict=True)) for row in sheet.table.rows]
    assert [row["planner"] for row in rows] == ["milp", "heft"]  # the fastest first
    assert rows[0]["step time (ms)"] == "125.0"
    assert rows[0]["above the bound"] == "25.0%"
    assert rows[1]["step time (ms)"] == "160.0 ± 127.1"  # 12.706 standard errors of 10 ms
    assert rows[1]["above the bound"] == "60.0% ± 127.1%"
    assert [row["run"] for row in rows] == ["[2]", "[1]"]


def test_problems_that_share_a_name_alone_are_told_apart(tmp_path: Path) -> None:
    for batch in (1, 2):
        config = f"graph: {{batch: {batch}}}\n"
        run_folder(tmp_path / str(batch), step_result(0.2), config=config)
    titles = [sheet.problem for sheet in Report.of([tmp_path / "1", tmp_path / "2"]).sheets]
    assert titles == ["gpt2 on mixed, as in run 1", "gpt2 on mixed, as in run 2"]


def test_one_problem_is_one_table_in_one_unit(tmp_path: Path) -> None:
    common = {"graph": "gpt2", "topology": "mixed", "lower_bound_s": 0.1}
    methods = [{"method": name, "step_time_s": 0.2, "peak_memory_bytes": 2**31} for name in "ab"]
    main = run_folder(tmp_path / "main", {**common, "methods": methods}, config="a: 1\n")
    own = Table("gpt2 on mixed", ("method", "ms", "peak"), [["A", "200", "2 GiB"]] * 2)
    (main / "table.md").write_text(f"# Own\n\n{own.markdown()}")
    planned = {"problem": "makespan", "agent": "heft", "objective": 0.3, "objective_s": 0.3}
    run_folder(tmp_path / "plan", {**common, **planned, "seconds": 1.0}, config="a: 2\n")
    reported = Report.of([tmp_path / "main", tmp_path / "plan"])
    (sheet,) = reported.sheets
    assert [entry.names[0] for entry in sheet.entries] == ["a", "b", "heft"]
    assert (
        dict(zip(sheet.table.columns, sheet.table.rows[0], strict=True))["peak memory (GiB)"]
        == "2.00"
    )
    text = "\n".join(reported.markdown())
    assert text.count("gpt2 on mixed") == 1


def test_an_interval_of_the_run_itself_stands_as_it_is(tmp_path: Path) -> None:
    ratio = {"mean": 0.9, "low": 0.8, "high": 0.95}
    result = {"split": "itp", "information": "known", "ratios": {"srsf": {"mean": ratio}}}
    (sheet,) = Report.of([run_folder(tmp_path / "a", result, app="generalise")]).sheets
    assert sheet.table.rows[0][2] == "0.900 [0.800, 0.950]"


def test_names_that_are_markup_are_texts(work: Path) -> None:
    config = f"agent: {json.dumps(HOSTILE)}\n"
    first = run_folder(work / "a", step_result(0.2, HOSTILE) | {"graph": HOSTILE}, config=config)
    second = run_folder(work / "b", step_result(0.3, "x") | {"graph": HOSTILE}, config="b: 1\n")
    (first / "trace.json").write_text(json.dumps(timeline()).replace("gpu0", "<b onclick=1>"))
    column = HOSTILE.replace('"', "")
    (first / "metrics.csv").write_text(f"step,{column}\n1,2\n2,3\n")
    command = listed("runs", [str(first), str(second), "hydra.run.dir=out", "title='<title>'"])
    assert run_job("report", command) == 0
    page = Elements((work / "out" / "report.html").read_text())
    assert not [image for image in page.named("img") if not image["src"].startswith("data:")]  # type: ignore[union-attr]
    assert not [attributes for _, attributes in page.tags if "onerror" in attributes]
    assert any(HOSTILE in text for text in page.texts)
    plots = [name for name in page.scripts if name.endswith("-data")]
    assert len(plots) == len([a for a in page.named("div") if a.get("class") == "plot"]) == 3
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
        (folder / "table.md").write_text(
            f"# Own\n\n{Table('T', ('k', 'v'), [['q', name]]).markdown()}"
        )
    arguments = ["runs=[a,b]", "hydra.run.dir=out"]
    assert run_job("report", arguments) == 0
    texts = [(work / "out" / f"report.{end}").read_text() for end in ("html", "md", "tex")]
    for text in texts:
        assert "200.0" in text
        assert "100.0%" in text or r"100.0\%" in text
        assert "python -m experiments.evaluate seed=0" in text
        assert "T (run [2])" in text
    assert '"schema_version"' in texts[2].splitlines()[0]
    assert "agent: b" in texts[0]  # the config
    result = read_json(work / "out/result.json")
    assert (result["runs"], result["configs"], result["figures"]) == (2, 2, 1)


def test_neighbours_of_one_micro_batch_are_one_bar(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a", step_result(0.2))
    (folder / "trace.json").write_text(json.dumps(timeline()))
    figure = gantt(RunFolder.read(folder))
    assert figure is not None
    forward, backward = ([*map(list, (b.base, b.x, b.y))] for b in figure.drawn.data)
    assert forward == [[0.0, 2.0], [2.0, 1.0], [0, 0]]
    assert backward == [[3.0], [1.0], [1]]
    assert figure.drawn.layout.yaxis.ticktext == ("gpu0", "gpu1")


def test_curves_of_seeds_have_their_mean_where_all_have_been(tmp_path: Path) -> None:
    for seed, scale in enumerate((1.0, 3.0)):
        folder = run_folder(tmp_path / str(seed), step_result(0.2), seed=seed, app="train")
        (folder / "metrics.csv").write_text(metrics(scale))
    (job,) = Report.of([tmp_path / "0", tmp_path / "1"]).jobs
    figure = learning_curve(job)
    assert figure is not None
    mean = next(t for t in figure.drawn.data if (t.name or "").startswith("best so far"))
    assert list(mean.x) == [100.0, 200.0, 300.0]
    assert list(mean.y) == pytest.approx([800.0, 600.0, 400.0])  # ms
    assert figure.drawn.layout.shapes[0].y0 == pytest.approx(100.0)  # the bound


def test_wide_intervals_do_not_rule_the_axis(tmp_path: Path) -> None:
    for seed, seconds in enumerate((0.2, 0.3)):
        run_folder(tmp_path / str(seed), step_result(seconds), seed=seed)
    run_folder(tmp_path / "b", step_result(0.35, "b"), config="b: 1\n")
    (sheet,) = Report.of([tmp_path / name for name in ("0", "1", "b")]).sheets
    figure = ranking(sheet)
    assert figure is not None
    low, high = figure.drawn.layout.xaxis.range
    assert -300.0 < low < 100.0  # the bound
    assert 350.0 < high < 700.0  # the slowest mean
    assert "beyond" in figure.note


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
        (job,) = Report.of([folder]).jobs
        learning_curve(job)

    assert str(folder) in told(read, [word])


def test_folders_that_are_absent_or_named_twice_are_one_line(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a", step_result(0.2))
    told(lambda: Report.of([tmp_path / "b"]), ["no such run folder"])
    told(lambda: Report.of([folder, f"{folder}/../a"]), ["named twice"])
    told(lambda: Report.of([]), ["runs"])


def test_numbers_that_no_computer_holds_are_words(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a", step_result(0.2))
    text = (folder / "result.json").read_text().replace("0.2,", f"1{'0' * 400},")
    (folder / "result.json").write_text(text.replace("2000000000.0", "NaN"))
    (sheet,) = Report.of([folder]).sheets
    assert sheet.table.rows[0][2] == "not known"
    assert ranking(sheet) is None


def test_words_without_a_key_are_run_folders() -> None:
    assert listed("runs", ["a b", "seed=1", "it's", "--help", "--config-dir", "c"]) == [
        "runs=['a b','it\\'s']", "seed=1", "--help", "--config-dir=c",
    ]  # fmt: skip
