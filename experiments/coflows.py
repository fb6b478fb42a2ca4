"""Completion times of the coflows of a trace under an order of priorities, beside a lower bound.

python -m experiments.coflows input=FB2010-1Hr-150-0.txt.gz agent=bssi rates=madd json=true
"""

from __future__ import annotations

import sys

from experiments.network.coflow_runs import CoflowsConfig, coflows
from experiments.run.app import run_app


def main(arguments: list[str] | None = None) -> int:
    return run_app("coflows", CoflowsConfig, coflows, arguments)


if __name__ == "__main__":
    sys.exit(main())
