"""Times as integers: exact where they have a common unit, rounded down where they have none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_BINARY_DIGITS, _DECIMAL_DIGITS = 40, 15  # behind the point, of a common unit
_ULPS = 4.0  # by which a time may miss a multiple of a decimal unit
_ROUNDING = 1e-12  # relative; covers the rounding of sums of times in floating point


@dataclass(frozen=True)
class TimeScale:
    """Seconds in units.

    Any program whose constraints only say that something is not before something else, and whose
    durations are rounded down, has an optimum that is rounded down: its bounds stay valid. Where
    the optimum takes only times that are whole, its bound is exact.
    """

    unit: Fraction  # seconds
    exact: bool  # all times are whole units
    rounding: float  # relative, to be taken off a bound: what sums of floats may lose

    @classmethod
    def of(cls, times: Sequence[FloatArray], horizon: float, resolution: float) -> TimeScale:
        """The unit of which most of `times` are multiples, or 1 / `resolution` of the horizon.

        `horizon` (seconds) holds at most `resolution` units in either case; times beyond it do not
        count. Units are products of powers of 1/2 and 1/10, and their multiples; what is a multiple
        but for its last digits is taken for one. If half of the times are of no such unit, it is
        not worth having.
        """
        known = np.unique(np.concatenate([array[array <= horizon] for array in times]))
        best, found = 0.5 * len(known), None
        for decimals in range(_DECIMAL_DIGITS + 1):
            for binary in range(_BINARY_DIGITS + 1):
                parts = 10**decimals * 2**binary
                if horizon * parts > resolution:
                    break
                whole = _whole(known, float(parts))
                if whole.sum() > best:
                    best, found = float(whole.sum()), (decimals, binary)
        if found is None:
            return cls(Fraction(horizon or 1.0) / Fraction(resolution), False, _ROUNDING)
        parts = 10 ** found[0] * 2 ** found[1]
        whole = _whole(known, float(parts))
        multiples = np.rint(known[whole] * float(parts)).astype(np.int64)
        step = int(np.gcd.reduce(multiples, initial=0)) or 1
        exact = bool(whole.all())
        floats_are_exact = exact and found[0] == 0 and (known * parts % 1.0 == 0.0).all()
        return cls(Fraction(step, parts), exact, 0.0 if floats_are_exact else _ROUNDING)

    def units(self, seconds: FloatArray) -> FloatArray:
        """Whole units of `seconds`: exact, or rounded down; inf stays."""
        count = seconds * float(1 / self.unit)
        return np.where(_whole(seconds, float(1 / self.unit)), np.rint(count), np.floor(count))

    def bound(self, units: float) -> float:
        """Seconds that are certainly not above `units`."""
        if not np.isfinite(units):
            return units
        return float(Fraction(units) * self.unit) * (1.0 - self.rounding)

    def explain(self) -> str:
        """How times became integers, in a few words."""
        unit = f"{float(self.unit):.6g} s"
        return f"times in units of {unit}" + ("" if self.exact else ", rounded down")


def _whole(seconds: FloatArray, parts: float) -> NDArray[np.bool_]:
    """Whether `seconds` are multiples of 1 / `parts`, but for their last digits."""
    finite = np.where(np.isfinite(seconds), seconds, 0.0)
    return np.abs(np.rint(finite * parts) / parts - finite) <= _ULPS * np.spacing(finite)
