"""Malleable jobs in slotted time: how many workers each has on which machine, slot by slot."""
