"""The main job: capture, learn, compare with every baseline, export, verify.

make run                                  # BERT-large on two V100 and two P100
python -m experiments.main graph=gpt2 topology=single_v100 budget_s=30
"""

from __future__ import annotations

import sys

from experiments.learning.main_job import MainConfig, main_job
from experiments.run.app import run_app


def main(arguments: list[str] | None = None) -> int:
    return run_app("main", MainConfig, main_job, arguments)


if __name__ == "__main__":
    sys.exit(main())
