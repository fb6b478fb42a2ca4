"""Replay a trace of jobs on a cluster under one scheduling policy: evaluate env=cluster.

python -m experiments.replay agent=srtf trace.path=jobs.csv trace.format=itp placement=yarn
"""

from experiments.command_line import main_of

main = main_of("replay", __name__)
