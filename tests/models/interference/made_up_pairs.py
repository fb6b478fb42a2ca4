"""Measured pairs that obey a law: jobs take turns of their own lengths on one GPU."""

from __future__ import annotations

import numpy as np

from envs.cluster.interference.rates import ON_GPU
from models.interference.fit import FitConfig
from models.interference.measurements import MeasuredJob, Measurements


def pairs(models: int = 5, each: int = 3, tables: int = 2, seed: int = 0) -> Measurements:
    """A job with turns of length w runs beside another at w / (w + other's w).

    Its profile has the logarithm of w with some noise, and a number that says nothing.
    """
    rng = np.random.default_rng(seed)
    count = models * each
    turn = np.exp(rng.normal(0.0, 0.6, (tables, count)))
    rate = turn[:, :, None] / (turn[:, :, None] + turn[:, None])
    rate[:, 0, count - 1] = rate[:, count - 1, 0] = np.nan  # do not fit into memory together
    hint = np.log(turn) + rng.normal(0.0, 0.3, turn.shape)
    return Measurements(
        name="made up",
        scope=ON_GPU,
        tables=tuple(f"table{n}" for n in range(tables)),
        jobs=tuple(MeasuredJob(f"job{n}", f"model{n // each}", 1, 1) for n in range(count)),
        features=("hint", "nothing"),
        profiles=np.stack([hint, rng.normal(size=hint.shape)], axis=-1),
        rate=rate,
    )


def small_fit(steps: int = 5, **changed: object) -> FitConfig:
    values = {
        "hidden": 8, "steps": steps, "learning_rate": 0.02, "weight_decay": 0.01,
        "jitter": (0.1, 0.3), "fingerprint_weight": 2.0, "members": 2, "inner_members": 1,
    }  # fmt: skip
    return FitConfig(**{**values, **changed})  # type: ignore[arg-type]
