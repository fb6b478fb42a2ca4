"""Bad input is refused with one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from envs.errors import InputError


@contextmanager
def refusal(words: str | None = None) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """What its block does is refused with a line in which `words`, an expression, is found."""
    with pytest.raises(InputError, match=words) as caught:
        yield caught
    assert "\n" not in str(caught.value).strip()
