"""A plan that training goes on from, where it does not begin with nothing."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from agents.rllib.archive import Record


@dataclass(frozen=True, eq=False)
class WarmStart:
    """A plan somebody else has found, the first of the archive, and what it took to find it."""

    record: Record
    seconds: float  # wall clock, which training counts as its own

    @property
    def identity(self) -> str:
        """SHA-256 of the decisions."""
        decisions = {name: values.tolist() for name, values in self.record.plan.items()}
        return hashlib.sha256(json.dumps(decisions, sort_keys=True).encode()).hexdigest()
