"""What is run: one small Hydra app each."""

import sys

if sys.argv[:1] == ["-m"]:  # `python -m experiments.<app>` is being found, and then loads for long
    from experiments.run.interrupts import end_at_once_on_signals

    end_at_once_on_signals()
