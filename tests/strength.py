"""How many examples a property is tried on: a sample every day, all of them in `make proof`.

The tier is Hypothesis's profile: `daily` unless pytest is given `--hypothesis-profile=proof`, or
`quick`, where two examples do.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st

DAILY, PROOF, QUICK = "daily", "proof", "quick"
SEEDS = st.integers(0, 2**32 - 1)  # of what a property draws by itself
# No deadline: the first example of a property may compile a kernel. Under CI the sample is the same
# every time, elsewhere it is drawn anew.
settings.register_profile(DAILY, deadline=None, max_examples=10, derandomize="CI" in os.environ)
settings.register_profile(QUICK, settings.get_profile(DAILY), max_examples=2, database=None)
settings.register_profile(PROOF, deadline=None, max_examples=100)
# For the check with faults, where any failing example will do.
settings.register_profile(
    "unshrunk", settings.get_profile(DAILY), phases=(Phase.explicit, Phase.generate)
)


def at_full_strength() -> bool:
    return settings.get_current_profile_name() == PROOF


def trials(full: int, daily: int | None = None) -> int:
    """`full` in `make proof`; otherwise `daily`, or about a twentieth and at least five."""
    if at_full_strength():
        return full
    return min(full, 5 + full // 20 if daily is None else daily)


def examples(full: int, daily: int | None = None, **others: Any) -> settings:
    """Decorator of a property: Hypothesis's settings with so many examples."""
    most = 2 if settings.get_current_profile_name() == QUICK else full
    return settings(max_examples=min(most, trials(full, daily)), **others)
