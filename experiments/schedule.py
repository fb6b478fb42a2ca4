"""A pipeline schedule by its name: makespan, span, live activations, a picture.

python -m experiments.schedule name=1f1b ranks=4 micro_batches=8 forward=10 input_gradient=12 \\
    weight_gradient=8 communication=1 json=true
"""

from experiments.run.app import main_of

main = main_of("schedule", __name__)
