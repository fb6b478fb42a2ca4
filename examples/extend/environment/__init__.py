"""`examples/Recompute-v0`: keep the activations of a layer, or compute them again.

In the project: a folder `envs/recompute`, registered by two rows in `envs/__init__.py`.
"""

import gymnasium

for _name, _entry in {
    "Recompute": "env:RecomputeEnv",
    "RecomputeToy": "env:toy_environment",
}.items():
    gymnasium.register(id=f"examples/{_name}-v0", entry_point=f"{__name__}.{_entry}")
