"""What happens: graphs, hardware, costs, simulators and the Gymnasium environments over them."""

from __future__ import annotations

import gymnasium

gymnasium.register(id="meshwright/Placement-v0", entry_point="envs.placement.env:PlacementEnv")
gymnasium.register(
    id="meshwright/PlacementToy-v0", entry_point="envs.placement.env:toy_environment"
)
