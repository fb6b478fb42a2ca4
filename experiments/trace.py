"""Traces of jobs: summarise, convert, download, fit, synthesise.

    python -m experiments.trace action=summary trace.path=cluster04.csv.gz trace.format=itp
    python -m experiments.trace action=convert trace.path=philly.csv.gz trace.format=philly \\
        trace.queue=ee9e8c action.output=ee9e8c.parquet
    python -m experiments.trace action=download action.source=itp
    python -m experiments.trace action=synthesise trace.workload=philly trace.jobs=1000000 \\
        trace.load=0.9 trace.gpus=10000 action.output=million.parquet
    python -m experiments.trace action=fit trace.path=jobs.csv action.output=ours.yaml
"""

from experiments.command_line import main_of

main = main_of("trace", __name__)
