"""A rate rule: bandwidth between servers as one function of the network.

python -m experiments.evaluate agent=contiguous graph=bert_base topology=leaf_spine \
    communication=allocated \
    communication.allocation._target_=examples.extend.rate_rule.neighbours_first.neighbours_first
"""

import numpy as np

from envs.hardware.network import Network
from envs.step.allocated import weighted_allocation
from envs.step.plans import BandwidthAllocation


def neighbours_first(network: Network, weight: float = 3.0) -> BandwidthAllocation:
    """Channels to the next server weigh three times as much as the others.

    Args:
        network: of the topology.
        weight: of channels to the next server; the others have 1.
    """
    source, target = np.divmod(network.channel_pipe, network.num_servers)
    return weighted_allocation(network, np.where(target == source + 1, weight, 1.0))
