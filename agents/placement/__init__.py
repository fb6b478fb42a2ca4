"""Placement planners, one file per algorithm."""
