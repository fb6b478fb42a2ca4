"""A cluster of jobs: read a trace, describe the cluster, replay it under schedulers."""

from __future__ import annotations

import inspect
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, overload

import polars as pl
from numpy.typing import ArrayLike
from rich.console import Console

from agents.cluster.own_order import Jobs, OwnOrder
from agents.cluster.policy import PlacementRule
from agents.cluster.policy import Scheduler as Policy
from agents.cluster.shipped import shipped_schedulers
from agents.solver import Knowledge
from envs.cluster.interference.rates import RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import Overheads
from envs.cluster.simulation.incidents import Failures
from envs.cluster.workload.trace import Trace
from envs.errors import InputError, require_one_of
from experiments.cluster.evaluate_cluster import CompareConfig, Replayed, policies_table, replays
from experiments.cluster.problem import ClusterProblem, Player, Scheduler, built_policy
from experiments.cluster.trace_source import LoadedTrace, TraceAppConfig, load_trace
from experiments.config.targets import build_as
from experiments.pictures.cluster import draw_jct_cdf
from experiments.reporting.tables import WIDTH, Table, markdown_table
from experiments.run.one_run import RunConsole
from experiments.run.provenance import text_hash
from meshwright.composition import composed, drawn, provenance, word

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PriorityFunction = Callable[[Jobs], ArrayLike]


@dataclass(frozen=True)
class Order:
    """An own order of priority, as `order` makes it; the placement comes with the replay."""

    function: PriorityFunction
    knows: Knowledge
    preemptive: bool
    name: str


@overload
def order(function: PriorityFunction) -> Order: ...


@overload
def order(
    *, knows: Knowledge = ..., preemptive: bool = ..., name: str | None = ...
) -> Callable[[PriorityFunction], Order]: ...


def order(
    function: PriorityFunction | None = None,
    *,
    knows: Knowledge = "nothing",
    preemptive: bool = True,
    name: str | None = None,
) -> Order | Callable[[PriorityFunction], Order]:
    """Make a scheduler of a function of the jobs, whose least value comes first.

        @mw.order(knows="durations")
        def shortest(jobs):
            return jobs.remaining_s

    Args:
        function: from `agents.cluster.own_order.Jobs` (columns such as `num_gpus`, `waited_s`,
            `executed_s`) to a number for each job.
        knows: what it looks at: "nothing", "predictions" or "durations". Comparisons are fair
            within one class, and durations are kept from the other two.
        preemptive: whether running jobs give way to earlier ones.
        name: as it stands in tables; None: that of the function.
    """

    require_one_of(knows, get_args(Knowledge), field="knows")

    def made(given: PriorityFunction) -> Order:
        called = name or str(getattr(given, "__name__", "own"))
        return Order(given, knows, preemptive, called)

    return made if function is None else made(function)


def read_trace(
    path: str | Path,
    format: str = "canonical",  # noqa: A002
    *,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    strict: bool = True,
    **arguments: Any,
) -> Trace:
    """The jobs in a file.

    Args:
        path: CSV or Parquet, plain or gzip.
        format: a name of `conf/trace/file.yaml`: canonical, itp, philly, helios, pai, acme, openb.
        columns: of anybody's table, which column has what: `{"submit": "created_at", "duration":
            "runtime", "gpus": "num_gpus"}`; `envs.cluster.workload.readers.own_columns` says what
            can be named and how times may be written.
        units: of columns of times that hold numbers other than seconds: `{"submit": "ms"}`.
        strict: False: faulty rows are left out, with a warning; True: the first is an error.
        arguments: what else stands in `conf/trace/file.yaml`: `queue`, `max_gpus`, `head`, `load`.

    Raises:
        InputError: naming the file, the row and the column that is wrong.
    """
    loaded = _loaded(str(path), format, columns=columns, units=units, strict=strict, **arguments)
    for line in loaded.changes():
        warnings.warn(f"{path}: {line}", stacklevel=2)
    return loaded.trace


def synthetic_trace(
    workload: str = "itp",
    *,
    jobs: int = 1000,
    load: float | None = None,
    gpus: int | None = None,
    seed: int = 0,
    **arguments: Any,
) -> Trace:
    """Jobs with the statistics of a public trace, of no file: equal seeds give equal jobs.

    Args:
        workload: itp or philly, or the path of a file in the form of `conf/workload`.
        jobs: how many.
        load: GPU-seconds asked for per GPU-second of `gpus` GPUs; None: what comes naturally.
        gpus: those of the cluster that the load is offered to.
        seed: of the trace.
        arguments: what else stands in `conf/trace/file.yaml`: `max_gpus`, `models`.

    Raises:
        InputError: an unknown workload or key, a number that cannot be.
    """
    given = {"workload": workload, "jobs": jobs, "load": load, "gpus": gpus, "seed": seed}
    return _loaded(None, "synthetic", **given, **arguments).trace


def _loaded(path: str | None, format: str, /, **given: object) -> LoadedTrace:  # noqa: A002
    words = [word(f"trace.{key}", value) for key, value in given.items()]
    config = composed("trace", TraceAppConfig, ["action=summary", *words])
    return load_trace(replace(config.trace, path=path, format=format))


def cluster(
    nodes: int,
    gpus_per_node: int | None = None,
    *,
    nodes_per_rack: int | None = None,
    gpu_types: Sequence[str] | None = None,
) -> Cluster:
    """Equal nodes of GPUs; what is left out has the value of `conf/compare.yaml`.

    Args:
        nodes: number of nodes.
        gpus_per_node: GPUs of each.
        nodes_per_rack: nodes that share a rack switch; None: one rack.
        gpu_types: several types have equal consecutive shares of the nodes.

    Raises:
        InputError: a number or a type that cannot be.
    """
    given = {
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "nodes_per_rack": nodes_per_rack,
        "gpu_types": None if gpu_types is None else list(gpu_types),
    }
    words = [word(f"cluster.{key}", value) for key, value in given.items() if value is not None]
    node = composed("compare", CompareConfig, words).cluster
    return build_as(Cluster, node, "cluster", "cluster")


@dataclass(frozen=True, eq=False)
class Replays:
    """A trace under several schedulers, the least mean completion time first.

    Printed, or in a notebook, it is a table; `rows` are its numbers.
    """

    problem: ClusterProblem
    found: Sequence[Replayed]
    title: str
    seed: int

    @cached_property
    def rows(self) -> list[dict[str, object]]:
        """The figures of every policy, as `experiments.compare` writes them; times in seconds."""
        return [row.record for row in self.found]

    @property
    def best(self) -> str:
        """The policy of the least mean completion time."""
        return self.found[0].policy

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[dict[str, object]]:
        return iter(self.rows)

    def __getitem__(self, policy: str) -> dict[str, object]:
        """The figures of one policy.

        Raises:
            InputError: it was not replayed.
        """
        for row in self.rows:
            if row["policy"] == policy:
                return row
        known = ", ".join(row.policy for row in self.found)
        raise InputError(f"'{policy}' was not replayed (known: {known})", field="policy")

    def to_polars(self) -> pl.DataFrame:
        """The figures as a table, a row for each policy."""
        return pl.DataFrame(self.rows)

    def draw(self, path: str | Path) -> Path:
        """Draw completion times under every policy, a PNG file (`.png` may be left out).

        Raises:
            InputError: the file cannot be written, or is to have another format.
        """
        inputs = {f"trace {self.problem.trace.name}": text_hash(repr(self.rows))}
        stamped = provenance("replay", self.seed).with_inputs(**inputs)
        return drawn(path, self._figure(), stamped)

    def __str__(self) -> str:
        table = self._table()
        width = max(WIDTH, table.least_width())
        console = Console(file=io.StringIO(), width=width, color_system=None)
        with console.capture() as captured:
            console.print(table.rich(width))
        lines = (line.rstrip() for line in captured.get().splitlines())
        return "\n".join(line for line in lines if line)

    def __repr__(self) -> str:
        return str(self)

    def _repr_markdown_(self) -> str:
        table = self._table()
        return f"**{table.title}**\n\n{markdown_table(table.columns, table.rows)}\n{table.note}"

    def _table(self) -> Table:
        return policies_table(self.found, self.title)

    def _figure(self) -> Figure:
        return draw_jct_cdf({row.policy: row.schedule.jct for row in self.found}, self.title)


Choice = str | Scheduler | Order | PriorityFunction | Path


def replay(
    trace: Trace,
    cluster: Cluster,
    policies: Choice | Sequence[Choice] | Mapping[str, Choice] | None = None,
    *,
    placement: str | None = None,
    interference: str | None = None,
    restart_s: float | None = None,
    checkpoint_s: float | None = None,
    failures: Failures | None = None,
    seed: int | None = None,
) -> Replays:
    """Replay a trace on a cluster under every policy: one table.

    What is left out has the value of `conf/compare.yaml`, policies included.

    Args:
        trace: what `read_trace` returned.
        cluster: what `cluster` returned.
        policies: names of `conf/agent` ("srtf"), dotted paths of classes, folders of exported
            schedulers or names of shipped ones ("unknown_durations"), functions or `order`s, and
            objects with `decide(simulator)` of one's own; one, several, or a mapping of names to
            these.
        placement: a name of `conf/placement`: where a gang starts, for policies that leave it open.
        interference: a name of `conf/interference`: how jobs slow each other down.
        restart_s: seconds for which a job that was stopped holds its GPUs before it progresses.
        checkpoint_s: seconds of progress between checkpoints, lost at most when a node fails.
        failures: nodes that fail.
        seed: of what policies and placement rules draw.

    Raises:
        InputError: an unknown name, a job that can never run, a policy that leaves jobs waiting.
    """
    for name, given, kind in (("trace", trace, Trace), ("cluster", cluster, Cluster)):
        if not isinstance(given, kind):
            raise InputError(f"{given!r} is no {kind.__name__}", field=name)
    if not isinstance(failures, Failures | None):
        raise InputError(f"{failures!r} is no {Failures.__name__}", field="failures")
    chosen = _named(policies)
    keys = {name: f"policy_{number}" for number, name in enumerate(chosen)}
    texts = {name: what for name, what in chosen.items() if isinstance(what, str | Path)}
    numbers = {
        "overheads.restart_s": restart_s,
        "overheads.checkpoint_s": checkpoint_s,
        "seed": seed,
    }
    words = [
        *([f"placement={placement}"] if placement is not None else []),
        *([f"interference={interference}"] if interference is not None else []),
        *(word(key, value) for key, value in numbers.items() if value is not None),
        word("shown", []),
        *(part for name, what in texts.items() for part in _words(keys[name], what)),
    ]
    try:
        config = composed("compare", CompareConfig, words)
    except InputError as error:  # of policies it tells the names that they have here
        reason = str(error)
        for name, key in keys.items():
            reason = reason.replace(f"+agent@agents.{key}=", "policies=")
            reason = reason.replace(f"agents.{key}", f"policies.{name}")
        raise InputError(reason) from error
    problem = ClusterProblem(
        cluster,
        trace,
        build_as(RateModel, config.interference, "interference", "interference model"),
        build_as(Overheads, config.overheads, "overheads", "overheads of jobs"),
        None if failures is None else failures.incidents(cluster),
    )
    built = {
        name: built_policy(config.agents[keys[name]], name)
        if isinstance(what, str | Path)
        else _policy(what, config)
        for name, what in chosen.items()
    }
    if policies is None:
        built = {name: built_policy(node, name) for name, node in config.agents.items()}
    found = replays(problem, built, (), RunConsole(file=io.StringIO()))
    return Replays(problem, found, problem.title, config.seed)


def _named(policies: Choice | Sequence[Choice] | Mapping[str, Choice] | None) -> dict[str, Choice]:
    """Policies by the name that they have in the table.

    Raises:
        InputError: two have the same one.
    """
    if policies is None:
        return {}
    if isinstance(policies, Mapping):
        return dict(policies)
    one = isinstance(policies, str) or not isinstance(policies, Sequence)
    several: Sequence[Choice] = [policies] if one else policies  # type: ignore[assignment,list-item]
    found: dict[str, Choice] = {}
    for policy in several:
        name = _name(policy)
        if name in found:
            reason = f"'{name}' stands twice: give a mapping of names to policies"
            raise InputError(reason, field="policies")
        found[name] = policy
    return found


def _name(policy: Choice) -> str:
    if isinstance(policy, str | Path):
        return str(policy)
    return str(getattr(policy, "name", None) or getattr(policy, "__name__", type(policy).__name__))


def _words(key: str, policy: str | Path) -> list[str]:
    """What adds a policy that is named to the config of the comparison, under a key."""
    text = str(policy)
    if isinstance(policy, Path) or text in shipped_schedulers() or Path(text).is_dir():
        checkpoint = word(f"agents.{key}.checkpoint", text)
        return [f"+agent@agents.{key}=checkpoint", checkpoint]
    return [f"+agent@agents.{key}={text}"]


def _policy(what: object, config: CompareConfig) -> Scheduler:
    """The policy that an object is, or that a function is the order of."""
    if not isinstance(what, Order) and inspect.isfunction(what):
        what = order(what)
    if isinstance(what, Order):
        rule = build_as(PlacementRule, config.placement, "placement", "placement rule")
        options: dict[str, Any] = {"knows": what.knows, "preemptive": what.preemptive}
        return OwnOrder(what.function, rule, config.seed, name=what.name, **options)
    if isinstance(what, Policy | Player) and not inspect.isclass(what):
        return what
    reason = f"{what!r} is neither a name, a function nor an object with decide(simulator)"
    raise InputError(reason, field="policies")
