"""One page of several runs: studies by their tables, others beside each other by what differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import polars as pl

from envs.errors import InputError
from experiments.config.composing import by_key
from experiments.config.verbs import expanded, jobs_of
from experiments.reporting.page import Figure, Page
from experiments.reporting.run_folder import RunFolder
from experiments.reporting.tables import Table, latex_text, write_markdown
from experiments.run.artifacts import write_text
from experiments.run.one_run import RESULT_FILE, Result, Run
from experiments.run.provenance import file_hash, stamp
from experiments.run.saved_run import saved_config
from experiments.studies.comparison import Comparison
from experiments.studies.frames import Frames, objectives
from experiments.studies.reading import add_pictures, add_tables, tables_of
from experiments.studies.running import StudyConfig
from experiments.studies.study import Cell, Study

PAGE, MARKDOWN, LATEX = "report.html", "report.md", "report.tex"
STEPS, CHARTS, MOST_CHARTS = "charts/global_step", "charts/", 4  # of the metrics of a training
NAMES = ("graph", "topology", "trace", "split", "regime", "env")  # of a result: what it is about


@dataclass(kw_only=True)
class ReportConfig:
    """`conf/report.yaml`."""

    runs: Sequence[str]  # run folders of any commands; seeds of one config are taken together
    title: str = "Runs"  # of the page
    seed: int
    json: bool


def report(config: ReportConfig, run: Run) -> Result:
    """Read the runs, then write the three forms."""
    folders = read_folders(config.runs)
    sections = list(comparisons(folders))
    hashes = {found.name: file_hash(found.path / RESULT_FILE) for found in folders}
    provenance = run.provenance.with_inputs(**hashes)
    mark = stamp({"title": config.title}, provenance, kind="report")
    about = f"{len(folders)} runs, {provenance.created[:10]}; intervals are 95 %."
    page, tables = Page(config.title, about), list[Table]()
    for found in sections:
        page.heading(found.study.title, f"section-{page.tables}")
        own = [replace(x, title=f"{found.study.title}: {x.title}") for x in tables_of(found)]
        tables += own
        add_pictures(page, found)
        add_tables(page, own)
    page.heading("Runs", "runs")
    for folder in folders:
        _add_run(page, folder)
    write_text(run.folder / PAGE, page.html(mark))
    runs = "\n".join(f"- `{x.command}` (commit {x.origin.get('git_commit')})" for x in folders)
    parts = [*(table.markdown() for table in tables), f"## Runs\n\n{runs}"]
    write_markdown(run, config.title, parts, provenance, MARKDOWN)
    commands = (rf"\item \texttt{{{latex_text(x.command)}}}" for x in folders)
    latex = [f"% {json.dumps(mark)}", r"% \usepackage{booktabs}", *(x.latex() for x in tables)]
    listed = [r"\begin{itemize}", *commands, r"\end{itemize}"]
    write_text(run.folder / LATEX, "\n".join([*latex, *listed]) + "\n")
    return Result(
        {
            "runs": len(folders),
            "sections": len(sections),
            "tables": page.tables,
            "figures": page.figures,
            "page": str(run.folder / PAGE),
            "markdown": str(run.folder / MARKDOWN),
            "latex": str(run.folder / LATEX),
        },
        provenance,
    )


def read_folders(paths: Sequence[str]) -> list[RunFolder]:
    """The finished runs in some folders.

    Raises:
        InputError: there is none in one, or it is named twice.
    """
    if not paths:
        raise InputError("config key 'runs': no run folder is named")
    found = [RunFolder.read(path) for path in paths]
    real = [folder.path.resolve() for folder in found]
    for path, folder in zip(paths, real, strict=True):
        if real.count(folder) > 1:
            raise InputError("is named twice", file=path)
    return found


def comparisons(folders: Sequence[RunFolder]) -> Iterator[Comparison]:
    """Each study by itself; other runs by command, where they have a figure to compare.

    Raises:
        InputError: the files of a study are damaged.
    """
    verbs: dict[str, list[RunFolder]] = {}
    for folder in folders:
        if (folder.path / "cells.parquet").is_file():
            study = saved_config(folder.path, StudyConfig).study
            yield Comparison(study, Frames.read(folder.path), study.metrics[0])
        else:
            verbs.setdefault(folder.verb, []).append(folder)
    for verb, some in verbs.items():
        if (metric := _metric(verb, some[0].result)) is not None:
            study = Study(title=verb, metrics=[metric])
            yield Comparison(study, Frames.of(verb, _records(verb, some)), metric)


def _metric(verb: str, result: Mapping[str, Any]) -> str | None:
    """The figure that a sweep of the command looks at."""
    known = objectives()
    jobs = (job.config for job in jobs_of(expanded(verb, ())[0]))
    named = (known[job] for job in jobs if job in known)
    return next((key for key in named if isinstance(result.get(key), int | float)), None)


def _records(
    verb: str, folders: Sequence[RunFolder]
) -> Iterator[tuple[Cell, Mapping[str, Any], Path]]:
    """Runs as cells: the agent is the solver, all else that differs tells problems apart."""
    configs = [dict(by_key(folder.choices)) for folder in folders]
    every = dict.fromkeys(key for config in configs for key in config)
    varying = [key for key in every if len({repr(config.get(key)) for config in configs}) > 1]
    for folder, config in zip(folders, configs, strict=True):
        result = folder.result
        names = [str(result[key]) for key in NAMES if isinstance(result.get(key), str)]
        solver = [str(result.get("agent") or config.get("agent._target_", verb)).rpartition(".")[2]]
        for key in varying:
            if key.rpartition(".")[2] in {"_target_", "name", "agent"} or key not in config:
                continue
            (solver if key.startswith("agent.") else names).append(f"{key}={config[key]}")
        factors = {"problem": ", ".join(names) or verb}
        seed = folder.seed if isinstance(folder.seed, int) else 0
        words = (str(folder.path),)
        yield Cell(verb, factors, ", ".join(solver), "", None, seed, words), result, folder.path


def _add_run(page: Page, folder: RunFolder) -> None:
    """Command, config, versions, tables, learning curves and pictures of one run."""
    origin, packages = folder.origin, folder.environment.get("packages")
    with page.run(f"run-{folder.name}", f"{folder.verb}: {folder.name}"):
        python = folder.environment.get("python", "unknown")
        version, commit = origin.get("package_version"), origin.get("git_commit")
        page.text(f"meshwright {version}, commit {commit}, Python {python}")
        page.command(f"seed {folder.seed}, {origin.get('created')}", folder.command)
        page.long_text("config", folder.config or "no config was stored")
        for title, lines in (
            ("package versions", packages),
            ("inputs", origin.get("inputs_sha256")),
        ):
            if isinstance(lines, Mapping):
                page.long_text(title, "\n".join(f"{key} {value}" for key, value in lines.items()))
        if folder.tables:
            with page.folded("its own tables"):
                add_tables(page, folder.tables)
        page.figure(_learning_curves(folder))
        page.pictures("pictures", folder.pictures())


def _learning_curves(folder: RunFolder) -> Figure | None:
    import plotly.express as px

    metrics = folder.metrics
    names = [x for x in metrics if x.startswith(CHARTS) and x != STEPS][:MOST_CHARTS]
    if STEPS not in metrics or not names:
        return None
    wide = pl.DataFrame({name: metrics[name] for name in (STEPS, *names)})
    long = wide.unpivot(names, index=STEPS, variable_name="metric").drop_nans("value")
    long = long.with_columns(pl.col("metric").map_elements(escape, pl.String))
    drawn = px.line(long, x=STEPS, y="value", facet_row="metric", height=100 + 220 * len(names))
    drawn.update_yaxes(matches=None)
    return Figure("Learning curves", drawn)
