"""Whether there is anything to learn: policies, searches and bounds on the windows of many regimes.

python -m experiments.headroom workers=2
python -m experiments.headroom regimes=[mixed_100,shared] windows=24
python -m experiments.headroom regimes=[mine] '+known.mine={gpu_milli: 500}'

A regime (conf/regimes.yaml) is jobs of published traces on random clusters, what they do to each
other, and what a scheduler may do. What has been replayed is kept in `cache`: the same command goes
on where it was stopped.
"""

from experiments.run.app import main_of

main = main_of("headroom", __name__)
