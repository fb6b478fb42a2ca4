"""Constants of a cluster from a table of its measured training steps.

    python -m experiments.calibrate measured.path=steps.csv json=true

The file `constants.json` in the run folder is what `experiments.simulate calibration=...` takes.
"""

from experiments.command_line import main_of

main = main_of("calibrate", __name__)
