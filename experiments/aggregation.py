"""SwitchML's and OmniReduce's own experiments: dedicated jobs, speed-ups, sparse sums.

python -m experiments.aggregation json=true
"""

from __future__ import annotations

import sys

from experiments.network.aggregation_tables import AggregationConfig, aggregation
from experiments.run.app import main_of

main = main_of("aggregation", AggregationConfig, aggregation)


if __name__ == "__main__":
    sys.exit(main())
