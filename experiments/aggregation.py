"""SwitchML's and OmniReduce's own experiments: dedicated jobs, speed-ups, sparse sums.

python -m experiments.aggregation json=true
"""

from __future__ import annotations

import sys

from experiments.network.aggregation_tables import AggregationConfig, aggregation
from experiments.run.app import run_app


def main(arguments: list[str] | None = None) -> int:
    return run_app("aggregation", AggregationConfig, aggregation, arguments)


if __name__ == "__main__":
    sys.exit(main())
