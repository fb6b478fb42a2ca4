"""What is run: one small Hydra app each."""

import sys

if sys.argv[:1] == ["-m"]:  # `python -m experiments.<app>` is being found, and then loads for long
    from experiments.run.loading import (
        end_at_once_on_signals,
        environment_fault,
        say_that_it_loads,
    )

    end_at_once_on_signals()
    if (fault := environment_fault()) is not None:
        print(f"error: {fault}", file=sys.stderr)
        sys.exit(2)
    if {"--help", "-h"} & set(sys.argv):
        from experiments.run.help import answer

        answer(sys.orig_argv)  # before the app is loaded, where it is one
    say_that_it_loads()
