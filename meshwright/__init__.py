"""Meshwright: plan a training step, replay a cluster's trace, ask a learned scheduler.

    import meshwright as mw

    print(mw.plan("bert_large", "mixed_v100_p100", "fusion_milp", budget_s=10))
    print(mw.replay(mw.read_trace("jobs.csv"), mw.cluster(nodes=4), ["srtf", "las_2d"]))

What stands in `__all__` is the public face of this package, and semantic versioning
(https://semver.org) applies to it alone: the folders behind it (`envs`, `models`, `agents`,
`experiments`, `conf`) may change between minor versions. Names load what they need when they are
first used; all but `capture` and `to_pyg` do without torch. Input that cannot be used is an
`InputError` of one line, which names the file, the row or the argument.

The environments are registered with Gymnasium: `gymnasium.make("meshwright/Placement-v0")`.
"""

from __future__ import annotations

import sys

from experiments.run.loading import end_at_once_on_signals, environment_fault

if sys.orig_argv[1:3] == ["-m", "meshwright"] or sys.argv[0].endswith("/bin/meshwright"):
    end_at_once_on_signals()  # what follows loads for long

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from agents.cluster.own_order import Jobs
    from agents.cluster.policy import Scheduler
    from envs.cluster.nodes import Cluster
    from envs.cluster.workload.trace import Trace
    from envs.errors import InputError
    from envs.graphs.op_graph import OpGraph
    from envs.graphs.transformer import TransformerSize
    from envs.hardware.topology import Topology
    from meshwright.clusters import Replays, cluster, order, read_trace, replay, synthetic_trace
    from meshwright.running import load, make, run
    from meshwright.steps import (
        PlanResult,
        Server,
        capture,
        one_problem,
        plan,
        read_graph,
        simulate,
        to_pyg,
        topology,
    )

__version__ = version("meshwright")

__all__ = [
    "Cluster",
    "InputError",
    "Jobs",
    "OpGraph",
    "PlanResult",
    "Replays",
    "Scheduler",
    "Server",
    "Topology",
    "Trace",
    "TransformerSize",
    "__version__",
    "capture",
    "cluster",
    "load",
    "make",
    "one_problem",
    "order",
    "plan",
    "read_graph",
    "read_trace",
    "replay",
    "run",
    "simulate",
    "synthetic_trace",
    "to_pyg",
    "topology",
]

_HOMES = {
    "Cluster": "envs.cluster.nodes",
    "InputError": "envs.errors",
    "Jobs": "agents.cluster.own_order",
    "OpGraph": "envs.graphs.op_graph",
    "PlanResult": "meshwright.steps",
    "Replays": "meshwright.clusters",
    "Scheduler": "agents.cluster.policy",
    "Server": "meshwright.steps",
    "Topology": "envs.hardware.topology",
    "Trace": "envs.cluster.workload.trace",
    "TransformerSize": "envs.graphs.transformer",
    "capture": "meshwright.steps",
    "cluster": "meshwright.clusters",
    "load": "meshwright.running",
    "make": "meshwright.running",
    "one_problem": "meshwright.steps",
    "order": "meshwright.clusters",
    "plan": "meshwright.steps",
    "read_graph": "meshwright.steps",
    "read_trace": "meshwright.clusters",
    "replay": "meshwright.clusters",
    "run": "meshwright.running",
    "simulate": "meshwright.steps",
    "synthetic_trace": "meshwright.clusters",
    "to_pyg": "meshwright.steps",
    "topology": "meshwright.steps",
}


class _WithGymnasium:
    """Registers the environments when Gymnasium is imported, which this package does not do.

    Gymnasium (since 1.0) looks for no plugins, and loading it here would slow the command's help.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Gymnasium's own, whose loader goes on with `envs`."""
        if name != "gymnasium":
            return None
        sys.meta_path.remove(_WithGymnasium)
        found = find_spec(name)
        if found is not None and found.loader is not None:
            load = found.loader.exec_module

            def and_register(module: Any) -> None:
                load(module)
                _register()

            found.loader.exec_module = and_register  # type: ignore[method-assign]
        return found


def _register() -> None:
    import envs  # noqa: F401
    from experiments.config.papers import register_environments

    register_environments()


if "gymnasium" in sys.modules:
    _register()
else:
    sys.meta_path.insert(0, _WithGymnasium)


def __getattr__(name: str) -> object:
    """A name of the public face, from where it lives."""
    if name not in _HOMES:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    if (fault := environment_fault()) is not None:
        raise import_module("envs.errors").InputError(fault)
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
