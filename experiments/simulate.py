"""How long a training step of a transformer takes on many devices, and what memory it needs.

    python -m experiments.simulate graph=gpt graph.hidden=12288 graph.layers=96 graph.heads=96 \\
        graph.sequence=2048 device=A100-80GB tensor=8 pipeline=8 data=8 micro_batch=1 \\
        global_batch=1536 recompute=full launch=megatron json=true

Times of kernels are those of a network learned from measured ones (cost=learned).
"""

from experiments.command_line import main_of

main = main_of("simulate", __name__)
