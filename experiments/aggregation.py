"""SwitchML's and OmniReduce's own experiments: dedicated jobs, speed-ups, sparse sums.

python -m experiments.aggregation json=true
"""

from experiments.run.app import main_of

main = main_of("aggregation", __name__)
