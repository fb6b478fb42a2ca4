"""What is run: one small Hydra app each."""

import sys

if sys.argv[:1] == ["-m"]:  # `python -m experiments.<command>` is being found
    from experiments.run.loading import prepare_command

    prepare_command(__name__, sys.orig_argv)
