"""What a job does to the hardware in one training step: the profiles of the analytic models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from envs.arrays import BoolArray, IntArray
from envs.errors import InputError
from envs.units import check_keys, parse_bytes, parse_seconds, read_count, read_quantity


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{value!r} is not a number")
    return float(value)


_FIELDS: Mapping[str, Callable[..., Any]] = {
    "gradients": partial(read_quantity, parse_bytes),
    "input": partial(read_quantity, parse_bytes),
    "busy": partial(read_quantity, _number),
    "least_gpus": read_count,
    "most_gpus": read_count,
}


@dataclass(frozen=True)
class JobProfile:
    """A data-parallel training job; each of its GPUs does one step on its own batch.

    Args:
        name: what `Trace.model` calls it.
        gradients: bytes that are all-reduced per step.
        input: bytes that each GPU gets from the host per step.
        busy: share of a step alone in which its GPU computes, in (0, 1].
        least_gpus: smallest gang of an unlabelled job that may draw it.
        most_gpus: largest such gang.
        step: seconds of a step without communication, by device of `envs.hardware.devices`.

    Raises:
        InputError: naming the profile and the field that is out of range.
    """

    name: str
    gradients: float
    input: float
    busy: float
    least_gpus: int
    most_gpus: int
    step: Mapping[str, float]

    def __post_init__(self) -> None:
        if not 0.0 < self.busy <= 1.0:
            raise self._error("busy", f"{self.busy} is not in (0, 1]")
        if not 1 <= self.least_gpus <= self.most_gpus:
            raise self._error("least_gpus", f"{self.least_gpus} to {self.most_gpus} is no range")
        for device, seconds in self.step.items():
            if not seconds > 0.0:
                raise self._error(f"step.{device}", f"{seconds} is not above 0")

    @classmethod
    def parse(cls, name: str, section: object) -> JobProfile:
        """A profile from a section of a configuration.

        Raises:
            InputError: naming the key that is missing, unknown or wrong.
        """
        key = f"profiles.{name}"
        fields = check_keys(section, (*_FIELDS, "step"), key=key)
        step = fields["step"]
        if not isinstance(step, Mapping) or not step:
            raise InputError(f"{step!r} is no section of seconds by device", field=f"{key}.step")
        seconds = {
            str(device): read_quantity(parse_seconds, value, key=f"{key}.step.{device}")
            for device, value in step.items()
        }
        read = {field: of(fields[field], key=f"{key}.{field}") for field, of in _FIELDS.items()}
        return cls(name, **read, step=seconds)

    def seconds_on(self, device: str) -> float:
        """Seconds of a step without communication on a device of the catalogue.

        Raises:
            InputError: the profile has none for it.
        """
        if device not in self.step:
            raise self._error(f"step.{device}", f"is missing (known: {', '.join(self.step)})")
        return self.step[device]

    def _error(self, field: str, message: str) -> InputError:
        return InputError(message, field=f"profiles.{self.name}.{field}")


class Profiles:
    """A table of profiles.

    Args:
        jobs: a section with the fields of `JobProfile` for every name.

    Raises:
        InputError: no profile, or one that is wrong.
    """

    def __init__(self, jobs: Mapping[str, Any]) -> None:
        if not jobs:
            raise InputError("is empty", field="profiles")
        self.names = tuple(map(str, jobs))
        self.all = tuple(map(JobProfile.parse, self.names, jobs.values()))

    def suits(self, gangs: IntArray) -> BoolArray:
        """(G, P) which profiles an unlabelled job of each gang size may draw."""
        least, most = np.array([(one.least_gpus, one.most_gpus) for one in self.all]).T
        suited: BoolArray = (least <= gangs[:, None]) & (gangs[:, None] <= most)
        return suited
