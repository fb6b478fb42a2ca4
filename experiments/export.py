"""Export the policy of a training run's best exam as a checkpoint folder, and verify it.

python -m experiments.export run=outputs/train/2026-01-31_12-00-00-000000
"""

from __future__ import annotations

import sys

from experiments.learning.export_run import ExportConfig, export_run
from experiments.run.app import run_app


def main(arguments: list[str] | None = None) -> int:
    return run_app("export", ExportConfig, export_run, arguments)


if __name__ == "__main__":
    sys.exit(main())
