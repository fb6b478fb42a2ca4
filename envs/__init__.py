"""What happens: graphs, hardware, costs, simulators and the Gymnasium environments over them.

Importing this package registers `meshwright/...` with Gymnasium. The multi-agent environments are
PettingZoo's, which has no registry: `PARALLEL` says where they are. Those of papers are added by
`experiments.config.papers`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv

PARALLEL: dict[str, str] = {
    f"meshwright/{name}-v0": f"{__name__}.{entry}"
    for name, entry in {
        "Joint": "joint.env:JointEnv",
        "JointToy": "joint.env:toy_environment",
        "ClusterParallel": "cluster.environment.parallel_env:ClusterParallelEnv",
        "ClusterParallelToy": "cluster.environment.parallel_env:toy_environment",
    }.items()
}

import gymnasium  # noqa: E402  meshwright adds those of papers to all as soon as it is loaded

for _name, _entry in {
    "Placement": "placement.env:PlacementEnv",
    "PlacementToy": "placement.env:toy_environment",
    "Bandwidth": "bandwidth.env:BandwidthEnv",
    "BandwidthContinuous": "bandwidth.env:continuous_environment",
    "BandwidthToy": "bandwidth.env:toy_environment",
    "BandwidthToyContinuous": "bandwidth.env:continuous_toy_environment",
    "Cluster": "cluster.environment.env:ClusterEnv",
    "ClusterPreemptive": "cluster.environment.env:preemptive_environment",
    "ClusterToy": "cluster.environment.env:toy_environment",
    "SlurmCluster": "cluster.environment.slurm_env:SlurmClusterEnv",
}.items():
    gymnasium.register(id=f"meshwright/{_name}-v0", entry_point=f"{__name__}.{_entry}")


def make_parallel(entry: str, **arguments: Any) -> ParallelEnv[Any, Any, Any]:
    """The environment of a value of `PARALLEL`."""
    module, _, name = entry.partition(":")
    made: ParallelEnv[Any, Any, Any] = getattr(import_module(module), name)(**arguments)
    return made
