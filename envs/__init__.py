"""What happens: graphs, hardware, costs, simulators and the Gymnasium environments over them.

Importing this package registers `meshwright/...` with Gymnasium. The multi-agent environments are
PettingZoo's, which has no registry: `envs.joint.env` has `JointEnv` (`Joint-v0`) and
`toy_environment` (`JointToy-v0`), `envs.cluster.environment.parallel_env` has `ClusterParallelEnv`
(`ClusterParallel-v0`) and `toy_environment` (`ClusterParallelToy-v0`),
`envs.cluster.allocation.parallel_env` `AllocationParallelEnv` (`AllocationParallel-v0`),
`envs.pricing.env` `PricingEnv` (`Pricing-v0`) and `toy_environment` (`PricingToy-v0`).
"""

import gymnasium

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
    "Allocation": "cluster.allocation.env:AllocationEnv",
}.items():
    gymnasium.register(id=f"meshwright/{_name}-v0", entry_point=f"{__name__}.{_entry}")
