"""Coflows: sets of flows that are done when the last of them is; files, rates, replays."""
