"""What happens: graphs, hardware, costs, simulators and the Gymnasium environments over them.

Importing this package registers `meshwright/...` with Gymnasium. The multi-agent environments are
PettingZoo's, which has no registry: `envs.joint.env` has `JointEnv` (`Joint-v0`) and
`toy_environment` (`JointToy-v0`), `envs.cluster.environment.parallel_env` has `ClusterParallelEnv`
(`ClusterParallel-v0`) and `toy_environment` (`ClusterParallelToy-v0`),
`envs.cluster.allocation.parallel_env` `AllocationParallelEnv` (`AllocationParallel-v0`),
`envs.pricing.env` `PricingEnv` (`Pricing-v0`) and `toy_environment` (`PricingToy-v0`).
"""

from __future__ import annotations

import gymnasium

gymnasium.register(id="meshwright/Placement-v0", entry_point="envs.placement.env:PlacementEnv")
gymnasium.register(
    id="meshwright/PlacementToy-v0", entry_point="envs.placement.env:toy_environment"
)
gymnasium.register(id="meshwright/Bandwidth-v0", entry_point="envs.bandwidth.env:BandwidthEnv")
gymnasium.register(
    id="meshwright/BandwidthContinuous-v0",
    entry_point="envs.bandwidth.env:continuous_environment",
)
gymnasium.register(
    id="meshwright/BandwidthToy-v0", entry_point="envs.bandwidth.env:toy_environment"
)
gymnasium.register(
    id="meshwright/BandwidthToyContinuous-v0",
    entry_point="envs.bandwidth.env:continuous_toy_environment",
)
gymnasium.register(
    id="meshwright/Cluster-v0", entry_point="envs.cluster.environment.env:ClusterEnv"
)
gymnasium.register(
    id="meshwright/ClusterPreemptive-v0",
    entry_point="envs.cluster.environment.env:preemptive_environment",
)
gymnasium.register(
    id="meshwright/ClusterToy-v0", entry_point="envs.cluster.environment.env:toy_environment"
)
gymnasium.register(
    id="meshwright/Allocation-v0", entry_point="envs.cluster.allocation.env:AllocationEnv"
)
