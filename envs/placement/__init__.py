"""`meshwright/Placement-v0`: place the groups of a training step one by one."""
