"""Capture the whole training step of a model as a graph.

    python -m experiments.capture graph=llama_7b graph.batch=1 graph.sequence=512 \\
        graph.micro_batches=1 json=true
"""

from experiments.command_line import main_of

main = main_of("capture", __name__)
