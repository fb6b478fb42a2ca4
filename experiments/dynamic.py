"""Groups and stages chosen anew as workers change: drift plus penalty beside other policies.

python -m experiments.dynamic
python -m experiments.dynamic slots=walk slots.heterogeneity=8 budget.rent=0.5
python -m experiments.dynamic slots=file slots.path=slots.csv seeds=1

The run folder receives the slots of the first seed, slots.csv, which slots=file reads.
"""

from experiments.command_line import main_of

main = main_of("dynamic", __name__)
