"""A scheduler acts on a live cluster: Slurm, or one of many nodes on this machine.

    python -m experiments.drive partition=gpu checkpoint=unknown_durations shadow=true
    python -m experiments.drive partition=gpu checkpoint=srtf durations=time_limit prefix=train-
    python -m experiments.drive cluster=local nodes=8 trace.path=jobs.csv trace.format=itp

It acts by `scontrol` on jobs of that partition, and of names with that prefix, alone: jobs that
are submitted with `sbatch --hold` wait until it releases them to the nodes that were decided; with
shadow=true it acts on nothing and compares its schedule with Slurm's own. It goes on until Ctrl-C,
or until its stop file is there. audit.jsonl in the run folder has every decision and change.
"""

from experiments.command_line import main_of

main = main_of("drive", __name__)
