"""Run hybrid plans in torch on this machine, beside the unsplit model; or measure layers for them.

python -m experiments.execute plan=plan.json
python -m experiments.execute plan=[1f1b.json,zb_h1.json] layers.width=384 layers.sequence=128

The processes of a plan meet over the loopback interface, one thread each. Losses, gradients and the
order of actions are compared with what they should be, the step's time with a list simulation of
the measured actions. With `profile=<file>` the layers alone are measured, for planners to read.
"""

from __future__ import annotations

import sys

from experiments.execution.executing import ExecuteConfig, execute
from experiments.execution.profiling import ProfileConfig, profile
from experiments.run.app import Variant, run_app

VARIANTS = {"profile=?*": Variant("execute_profile", ProfileConfig, profile)}


def main(arguments: list[str] | None = None) -> int:
    """The app; measuring layers has a config of its own."""
    return run_app("execute", ExecuteConfig, execute, arguments, VARIANTS)


if __name__ == "__main__":
    sys.exit(main())
