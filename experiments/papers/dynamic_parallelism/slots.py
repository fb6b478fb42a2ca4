"""Workers whose speed, bandwidth and rent change from slot to slot: read, or generated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

import numpy as np
import polars as pl
from annotated_types import Ge, Gt, Lt, MinLen

from envs.arrays import FloatArray
from envs.bounds import Count, NonNegative, Positive, Share, bounded
from envs.errors import InputError
from envs.files import write_atomically
from envs.text_table import RowChecks, read_table

Rng = np.random.Generator

COLUMNS = ("slot", "worker", "speed", "bandwidth", "rent")


@dataclass(frozen=True, eq=False)
class Slots:
    """W workers in T slots; a slot is as long as one batch takes, and constant inside.

    A worker has a speed, times that of the device on which the layers were timed; a bandwidth,
    bytes/s of its port in each direction; and a rent, what it costs in a slot in which it takes
    part.
    """

    workers: tuple[str, ...]
    values: FloatArray  # (T, W, 3) speed, bandwidth, rent


@runtime_checkable
class SlotSource(Protocol):
    """Where slots come from."""

    def draw(self, seed: int) -> Slots:
        """The slots of a seed."""


@bounded
@dataclass(frozen=True)
class Markov:
    """A chain over levels: it stays with probability `stay`, else jumps to any of the others."""

    # of a worker's own full speed
    levels: Annotated[tuple[Positive, ...], MinLen(1)] = (1.0, 0.5, 0.2)
    stay: Share = 0.9  # probability that a slot is as the one before

    def factors(self, rng: Rng, slots: int, chains: int) -> FloatArray:
        """(slots, chains), started in equilibrium: every level as likely."""
        count = len(self.levels)
        shift = rng.integers(1, max(count, 2), size=(slots, chains))
        shift[rng.random((slots, chains)) < self.stay] = 0
        shift[0] = rng.integers(count, size=chains)
        return np.asarray(np.array(self.levels)[np.cumsum(shift, axis=0) % count])


@bounded
@dataclass(frozen=True)
class Walk:
    """A random walk of the logarithm, reflected at `least` and at 1."""

    step: NonNegative = 0.1  # standard deviation of a slot's change of the logarithm
    least: Annotated[float, Gt(0.0), Lt(1.0)] = 0.2  # of a worker's own full speed

    def factors(self, rng: Rng, slots: int, chains: int) -> FloatArray:
        """(slots, chains), started anywhere between the limits."""
        span = -math.log(self.least)
        steps = self.step * rng.standard_normal((slots, chains))
        steps[0] = rng.uniform(0.0, span, chains)
        folded = np.cumsum(steps, axis=0) % (2.0 * span)
        return np.exp(-np.minimum(folded, 2.0 * span - folded))


Change = Markov | Walk


@bounded
@dataclass(frozen=True)
class GeneratedSlots:
    """Workers of different speeds; each one's speed, bandwidth and rent change independently.

    Fastest over slowest is `heterogeneity`, the others between them in geometric steps; ports
    differ as much, in an order drawn at random. The rent of a worker is in proportion to its full
    speed, 1 for the fastest.
    """

    workers: Annotated[int, Ge(2)] = 6  # how many
    slots: Count = 100  # how many
    # fastest over slowest, of speeds and, in an order of their own, of ports
    heterogeneity: Annotated[float, Ge(1.0), Lt(math.inf)] = 4.0
    bandwidth: Positive = 1250000000.0  # bytes/s of the fastest port
    speed_change: Change = Markov()  # the share of its full speed that a worker has
    bandwidth_change: Change = Markov()  # the same of its port
    rent_change: Change = Markov(levels=(1.0, 0.4))  # and of its rent

    def draw(self, seed: int) -> Slots:
        """The slots of a seed."""
        rng = np.random.default_rng(seed)
        full = np.geomspace(1.0, 1.0 / self.heterogeneity, self.workers)
        shape = self.slots, self.workers
        values = [
            full * self.speed_change.factors(rng, *shape),
            self.bandwidth * rng.permutation(full) * self.bandwidth_change.factors(rng, *shape),
            full * self.rent_change.factors(rng, *shape),
        ]
        names = tuple(f"worker{w}" for w in range(self.workers))
        return Slots(names, np.stack(values, axis=2))


@dataclass(frozen=True)
class SlotFile:
    """The slots of a CSV file, the same for every seed.

    A row for every worker in every slot, with the columns `COLUMNS` in any order. Slots are
    numbered from 0; workers stand in the order of their first rows.
    """

    path: str  # plain or gzip

    def draw(self, seed: int) -> Slots:
        """What is in the file.

        Raises:
            InputError: naming file, row and column; a worker is missing in a slot, or stands twice.
        """
        del seed
        checks = RowChecks(read_table(self.path, COLUMNS))
        slot, worker = checks.whole("slot"), checks.text("worker")
        values = np.stack([checks.numbers(name) for name in COLUMNS[2:]], axis=1)
        for name, column in zip(("speed", "bandwidth"), values.T, strict=False):
            checks.reject(column == 0.0, name, "is not positive")
        checks.unique("worker", pl.Series(slot).cast(pl.String) + " " + worker)
        checks.finish(strict=True)
        row = {key: place for place, key in enumerate(zip(slot.tolist(), worker, strict=True))}
        workers = tuple(dict.fromkeys(worker))
        try:
            order = [row[t, name] for t in range(int(slot.max()) + 1) for name in workers]
        except KeyError as missing:
            t, name = missing.args[0]
            fault = f"{name!r} is missing"
            raise InputError(fault, file=self.path, record=f"slot {t}") from None
        return Slots(workers, values[order].reshape(-1, len(workers), 3))


def write_slots(slots: Slots, path: Path) -> None:
    """A row per slot and worker, with the columns `COLUMNS`."""
    count, workers, _ = slots.values.shape
    named = np.repeat(np.arange(count), workers), [*slots.workers] * count
    columns = zip(COLUMNS, (*named, *slots.values.reshape(-1, 3).T), strict=True)
    write_atomically(path, pl.DataFrame(dict(columns)).write_csv().encode())
