"""Completion times of coflows under an order of priorities; or jobs that share in-network sums.

python -m experiments.coflows input=FB2010-1Hr-150-0.txt.gz agent=bssi rates=madd json=true
python -m experiments.coflows tenants=300 layers=layers.csv

A trace is replayed on a big switch, and its sum of completion times stands beside a lower bound.
With `tenants=<jobs>` training jobs on racks run under every scheduler.
"""

from experiments.command_line import main_of

main = main_of("coflows", __name__)
