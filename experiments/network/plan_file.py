"""Plans of synchronisation on disk: JSON by the names of vertices, with their problem."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from envs.errors import InputError, refused_in, require_one_of
from envs.forms import Form, read_form
from envs.synchronisation.link_graph import LinkGraph, described, description
from envs.synchronisation.plan import Primitive, SynchronisationPlan, Tree, Way
from envs.synchronisation.problem import SynchronisationProblem
from envs.units import parse_bytes, read_quantity
from experiments.run.artifacts import write_json
from experiments.run.provenance import Provenance, stamp
from models.artifacts import read_kind

KIND = "meshwright.synchronisation_plan"
SCHEMA_VERSION = 1


class _Network(Form):
    name: str
    vertices: dict[str, Any]
    links: Sequence[Any]


class _Asked(Form):
    bytes: float | str
    primitive: str


class _Tree(Form):
    root: str
    share: str | float
    reduce: Sequence[Sequence[str]]
    broadcast: Sequence[Sequence[str]]


class _Plan(Form):
    name: str
    chunk: float | str | None
    trees: Sequence[_Tree]


class _Document(Form):
    model_config = ConfigDict(extra="ignore")

    network: _Network
    problem: _Asked
    plan: _Plan


def write_plan(
    path: Path, problem: SynchronisationProblem, plan: SynchronisationPlan, provenance: Provenance
) -> None:
    """Write plan and problem atomically.

    The document: `network` (as `envs.synchronisation.link_graph.described` takes it), `problem`
    {bytes, primitive}, `plan` {name, chunk (null: whole shares), trees: [{root, share ("1/8"),
    reduce, broadcast: [[names from sender to receiver]]}]}.
    """
    names = problem.network.vertices
    trees = [
        {
            "root": names[tree.root],
            "share": str(tree.share),
            "reduce": [[names[v] for v in way] for way in tree.reduce],
            "broadcast": [[names[v] for v in way] for way in tree.broadcast],
        }
        for tree in plan.trees
    ]
    document = {
        "network": description(problem.network),
        "problem": {"bytes": problem.size, "primitive": problem.primitive.value},
        "plan": {"name": plan.name, "chunk": plan.chunk, "trees": trees},
    }
    kind = KIND.split(".")[1]
    write_json(path, stamp(document, provenance, kind=kind, schema_version=SCHEMA_VERSION))


def read_plan(path: str | Path) -> tuple[SynchronisationProblem, SynchronisationPlan]:
    """The problem and the plan in a file; the plan has no violations.

    Raises:
        InputError: naming the file and the field at fault, or the first violation.
    """
    document = read_form(_Document, read_kind(Path(path), KIND, SCHEMA_VERSION), path)
    with refused_in(path):
        network = described(**document.network.model_dump())
        size = read_quantity(parse_bytes, document.problem.bytes, key="problem.bytes")
        primitive = primitive_of(document.problem.primitive, "problem.primitive")
        problem = SynchronisationProblem(network, size, primitive)
        plan = _plan(document.plan, network)
    violations = plan.violations(problem)
    if violations:
        raise InputError(violations[0], file=path, field="plan")
    return problem, plan


def primitive_of(name: str, key: str = "primitive") -> Primitive:
    """The primitive of that name.

    Raises:
        InputError: there is none.
    """
    known = {one.value: one for one in Primitive}
    require_one_of(name, known, field=key)
    return known[name]


def _plan(section: _Plan, network: LinkGraph) -> SynchronisationPlan:
    number = {name: vertex for vertex, name in enumerate(network.vertices)}

    def vertex(name: str, key: str) -> int:
        if name not in number:
            raise InputError(f"{name!r} is no vertex of the network", field=key)
        return number[name]

    trees = []
    for place, row in enumerate(section.trees):
        key = f"plan.trees.{place}"
        ways: list[tuple[Way, ...]] = [
            tuple(tuple(vertex(v, f"{key}.{name}") for v in way) for way in given)
            for name, given in (("reduce", row.reduce), ("broadcast", row.broadcast))
        ]
        try:
            share = Fraction(str(row.share))
        except (ValueError, ZeroDivisionError) as error:
            reason = f"{row.share!r} is no share such as 1/8"
            raise InputError(reason, field=f"{key}.share") from error
        trees.append(Tree(vertex(row.root, f"{key}.root"), share, *ways))
    chunk = section.chunk
    pieces = float("inf") if chunk is None else read_quantity(parse_bytes, chunk, key="plan.chunk")
    return SynchronisationPlan(section.name, tuple(trees), pieces)
