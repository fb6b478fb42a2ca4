"""`python -m experiments.study`."""

from experiments.run.app import main_of

main = main_of("study", __name__)
