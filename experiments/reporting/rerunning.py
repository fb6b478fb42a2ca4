"""The table of claims, and commands of it run again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envs.errors import InputError
from experiments.reporting.claims import (
    page_of,
    read_claims,
    rerun,
    short_table,
    whole_table,
)
from experiments.reporting.page import Page
from experiments.run.artifacts import write_text
from experiments.run.one_run import Result, Run
from experiments.run.provenance import stamp
from experiments.study.display import ProgressDisplay
from experiments.study.tables import write_tables

MARKDOWN, LATEX, PAGE = "claims.md", "claims.tex", "claims.html"


@dataclass(kw_only=True)
class ClaimsConfig:
    """`conf/claims.yaml`."""

    folder: str | None = (
        None  # a folder with further claims, a file each, in the form of a row and with its subject
    )
    # names of claims whose commands are run, and their figures compared: rerun=[flow_times]
    rerun: Sequence[str] = ()
    seed: int
    json: bool


def claims(config: ClaimsConfig, run: Run) -> Result:
    """Write the table; run the commands that are asked for, and compare."""
    known = {claim.name: claim for claim in read_claims(config.folder)}
    for name in config.rerun:
        if name not in known:
            raise InputError(f"config key 'rerun': no claim {name!r} (known: {', '.join(known)})")
    reruns = []
    with ProgressDisplay(run.console) as display:
        for name in config.rerun:
            task = display.begin(f"{name} ({known[name].rerun.takes})")
            value = rerun(known[name], run.folder / "reruns")
            holds = known[name].holds(value)
            reruns.append({"claim": name, "value": value, "in_the_interval": holds})
            told = "inside" if holds else "OUTSIDE"
            display.end(task, f"{value:.7g}, {told} {known[name].interval}")
    table = whole_table(list(known.values()))
    write_tables(run, "Claims", [short_table(list(known.values())), table], run.provenance)
    write_text(run.folder / MARKDOWN, page_of(list(known.values())))
    write_text(run.folder / LATEX, table.latex())
    page = Page("Claims", "What is claimed, and what was measured here.")
    page.table(table, wide=True)
    mark = stamp({"title": "Claims"}, run.provenance, kind="claims")
    write_text(run.folder / PAGE, page.html(mark))
    return Result(
        {
            "claims": len(known),
            "do_not_hold": [name for name, own in known.items() if own.verdict == "does not hold"],
            "reruns": reruns,
            "all_in_their_intervals": all(x["in_the_interval"] for x in reruns) if reruns else None,
            "page": str(run.folder / PAGE),
        },
        run.provenance,
    )
