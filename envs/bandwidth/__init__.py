"""`meshwright/Bandwidth-v0`: share the links of a placed training step, phase by phase."""
