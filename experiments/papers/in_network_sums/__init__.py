"""Gradients summed on the way: SwitchML in the slots of switches, OmniReduce block by block."""
