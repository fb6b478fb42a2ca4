"""Fix a split before training: its windows, the best baseline on each, and a proved lower bound.

python -m experiments.split split=itp                  # check: the facts are those of the files
python -m experiments.split split=itp fix=true output=conf/split/facts/itp.yaml
"""

from experiments.run.app import main_of

main = main_of("split", __name__)
