"""A test that starts a process is marked `slow`, or fails: in `make test` as in `make quick`."""

from __future__ import annotations

import os
import subprocess

import pytest


@pytest.mark.parametrize("start", [
    lambda: subprocess.run(["true"], check=True),
    lambda: os.posix_spawn("/bin/true", ["true"], {}),
    lambda: os.system("true"),
])  # fmt: skip
def test_a_process_without_the_mark_fails_the_test(start) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(pytest.fail.Exception, match="mark it `slow`"):
        start()


@pytest.mark.slow
def test_a_process_with_the_mark_may_start() -> None:
    subprocess.run(["true"], check=True)
