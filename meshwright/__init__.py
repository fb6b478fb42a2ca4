"""The public face: plan a training step, replay a cluster's trace, ask a learned scheduler."""

from importlib.metadata import version

__version__ = version("meshwright")
