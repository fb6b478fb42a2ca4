"""`PlacementPolicy`: from a padded graph to one logit per device and a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gymnasium import spaces
from torch import Tensor, nn

from envs.errors import InputError
from envs.spaces import FeatureWidths
from models.architecture import Policy, width_of
from models.step.encoders import DeviceEncoder, OperatorEncoder, scatter_edges, standing_on
from models.step.graph_batch import GraphBatch
from models.step.heads import PointerHead, ValueHead


@dataclass(frozen=True)
class PolicyConfig:
    """Everything a person chooses about a policy; the observation fixes the rest.

    Attributes:
        hidden: width of node and device states.
        operator_rounds: rounds of message passing over the whole operator graph; one further
            round, for the current group alone, is part of the pointer head.
        device_rounds: rounds of message passing between devices.
        initial_scale: factor on the pointer's last layer at the start; small means near uniform.
        initial_candidate_weights: candidate feature -> starting weight of its direct, linear part
            in a device's logit; the others start at 0. All are learned. A start near a rule that a
            feature expresses: stay where you stand, go where the step gets shorter.

    Raises:
        InputError: a number is out of range.
    """

    hidden: int = 64
    operator_rounds: int = 2
    device_rounds: int = 1
    initial_scale: float = 0.01
    initial_candidate_weights: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("hidden", 2), ("operator_rounds", 0), ("device_rounds", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{getattr(self, name)} is below {least}", field=name)
        weights = self.initial_candidate_weights
        if not isinstance(weights, Mapping) or not all(isinstance(key, int) for key in weights):
            raise InputError(
                f"{weights!r} does not map candidate features to weights",
                field="initial_candidate_weights",
            )

    def policy(
        self, observation_space: spaces.Dict, action_space: spaces.Space[Any]
    ) -> PlacementPolicy:
        """A fresh policy for an agent that reads padded graphs and chooses a device.

        Raises:
            InputError: the agent does not.
        """
        if not isinstance(action_space, spaces.Discrete):
            raise InputError(f"a placement policy chooses a device, not from {action_space}")
        return PlacementPolicy(
            self,
            FeatureWidths(
                **{
                    field.name: width_of(observation_space, f"{field.name}_features")
                    for field in fields(FeatureWidths)
                }
            ),
        )


class PlacementPolicy(Policy):
    """Actor and critic over one shared encoder; any number of nodes, edges and devices.

    Weights are shared between nodes and between devices. The action mask is applied inside, so
    that training, exploration and the exported policy see the same distribution.

    Args:
        config: width, depth and start.
        widths: feature widths of the observation.
    """

    def __init__(self, config: PolicyConfig, widths: FeatureWidths) -> None:
        super().__init__()
        self.config = config
        self.widths = widths
        hidden = config.hidden
        self.edge_weight = nn.Sequential(
            nn.Linear(widths.edge, 8), nn.ReLU(), nn.Linear(8, 2), nn.Sigmoid()
        )
        self.operators = OperatorEncoder(widths, hidden, config.operator_rounds)
        self.devices = DeviceEncoder(widths, hidden, config.device_rounds)
        self.pointer = PointerHead(
            widths, hidden, config.initial_scale, config.initial_candidate_weights
        )
        self.value = ValueHead(hidden)

    def decide(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(B, D) masked logits and (B,) values."""
        logits, value = self(GraphBatch.of(observation))
        return logits, value

    def forward(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        """(B, D) masked logits and (B,) values."""
        on = standing_on(batch)
        into, back = scatter_edges(batch, self.edge_weight(batch.edge_features))
        nodes = self.operators(batch, on, into, back)
        devices = self.devices(batch, nodes, on, into, back)
        logits = self.pointer(batch, nodes, devices, on, [into, back])
        return logits, self.value(batch, nodes, devices)
