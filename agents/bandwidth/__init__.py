"""Planners of bandwidth for a placed step, and of placement and bandwidth together."""
