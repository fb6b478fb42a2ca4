"""Policies of a step: placement, bandwidth, and both as a team."""
