"""Data for graph neural networks: caches, orders, partitions and resources, apart and together.

python -m experiments.data_pipeline
python -m experiments.data_pipeline input=edges.txt labels=labels.txt metis=true

A batch asks for the features of a sampled neighbourhood; eight stages bring it to the GPUs. The run
folder receives stages.png: what each stage takes.
"""

from experiments.command_line import main_of

main = main_of("data_pipeline", __name__)
