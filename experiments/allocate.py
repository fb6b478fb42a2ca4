"""Who gives how many workers to malleable jobs, beside what no plan can be worth more than.

python -m experiments.allocate agent=gadget speed=parameter_server
python -m experiments.allocate problem=trace trace.path=cluster04.csv.gz trace.format=itp json=true
"""

from __future__ import annotations

import sys

from experiments.cluster.allocating import AllocateConfig, allocate
from experiments.run.app import run_app


def main(arguments: list[str] | None = None) -> int:
    return run_app("allocate", AllocateConfig, allocate, arguments)


if __name__ == "__main__":
    sys.exit(main())
