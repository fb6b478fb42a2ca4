"""Run a shell file with programs that only write down how they were called."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from shlex import quote

# Words end with the unit separator, calls with the record separator of ASCII.
_RECORDER = """#!/bin/sh
printf '%s\\037' "${{0##*/}}" "$@" >>{log}
printf '\\036' >>{log}
words="${{0##*/}} $*"
case "$words" in
{answers}
esac
case "$words" in *{failing}* | *' rule del '*) exit 1 ;; esac
"""
# A machine that has every address and loose filters, hashes ports, and holds no rule of a plan.
ANSWERS = {
    "ip -4 -o addr": "1: here",
    "cat /proc/sys/net/ipv4/fib": "1",
    "cat /proc/sys/net/ipv4/conf": "0",
    "id": "0",
}


def calls(
    folder: Path,
    text: str,
    answers: Mapping[str, str] = ANSWERS,
    failing: str = "nothing fails",
    expected: int = 0,
) -> list[list[str]]:
    """The program calls that a shell file makes, word by word; a call with `failing` fails."""
    programs, log, script = folder / "programs", folder / "calls", folder / "script.sh"
    programs.mkdir(exist_ok=True)
    log.write_text("")
    cases = "\n".join(f"{quote(words)}*) echo {quote(said)} ;;" for words, said in answers.items())
    filled = {"log": quote(str(log)), "answers": cases, "failing": quote(failing)}
    for name in ("ip", "tc", "cat", "id"):
        recorder = programs / name
        recorder.write_text(_RECORDER.format(**filled))
        recorder.chmod(0o755)
    script.write_text(text)
    done = subprocess.run(
        ["/bin/sh", str(script)],
        env={**os.environ, "PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
        # A shell cannot trap what it ignores from its start, as jobs in the background are.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert done.returncode == expected, done.stderr
    return [record.split("\037")[:-1] for record in log.read_text().split("\036")[:-1]]
