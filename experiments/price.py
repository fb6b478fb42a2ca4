"""Prices against an adversary: the exact worst ratio of rules, programs and a learned rule.

python -m experiments.price problem=k_max_search units=[1,2,5] spreads=[5,20,50]
python -m experiments.price problem=rentals spreads=[5] seeds=2
"""

from experiments.run.app import main_of

main = main_of("price", __name__)
