"""Export the policy of a training run as a scheduler checkpoint, and verify it.

python -m experiments.export run=outputs/train/2026-01-31_12-00-00-000000

Of a run that placed operators it is the last policy, of one that scheduled the jobs of clusters the
policy of the best exam.
"""

from __future__ import annotations

import sys

from experiments.learning.export_run import ExportConfig, export_run
from experiments.run.app import run_app


def main(arguments: list[str] | None = None) -> int:
    return run_app("export", ExportConfig, export_run, arguments)


if __name__ == "__main__":
    sys.exit(main())
