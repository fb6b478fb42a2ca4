"""What is run: one small Hydra app each."""

import sys

if sys.argv[:1] == ["-m"]:  # `python -m experiments.<app>` is being found, and then loads for long
    from experiments.run.interrupts import end_at_once_on_signals

    end_at_once_on_signals()
    if {"--help", "-h"} & set(sys.argv):
        from experiments.run.help import answer

        answer(sys.orig_argv)  # before the app is loaded, where it is one
