"""Cells of a grid run here: most of the time of a small one are its imports."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import IO, Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton

from experiments.run.app import main_of
from experiments.study import processes


class InThisProcess:
    """What `subprocess.Popen` is to the grid; the app has ended when it is made."""

    started = 0
    stdin = None
    most = sys.maxsize  # cells; at the next one the user presses Ctrl-C

    def __init__(self, command: Sequence[str], stdout: IO[bytes], **_: Any) -> None:
        cls = type(self)
        if cls.started == cls.most:
            raise KeyboardInterrupt
        cls.started += 1
        _, app, *arguments = command[command.index("-m") :]
        log, before, hydra = io.StringIO(), sys.argv, Singleton.get_state()
        GlobalHydra.instance().clear()  # a process of its own would have none
        sys.argv = [app, *arguments]
        try:
            with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
                self.returncode = main_of(app.rpartition(".")[2])()
        except SystemExit as end:
            self.returncode = int(end.code or 0)
        finally:
            sys.argv = before
            Singleton.set_state(hydra)
            stdout.write(log.getvalue().encode())

    def poll(self) -> int:
        """It has ended."""
        return self.returncode


@contextlib.contextmanager
def cells_in_this_process(most: int = sys.maxsize) -> Iterator[type[InThisProcess]]:
    """No cell is a process of its own; at most so many of them are run."""
    made = type("Limited", (InThisProcess,), {"most": most})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "subprocess", SimpleNamespace(Popen=made, PIPE=None, STDOUT=None))
        yield made
