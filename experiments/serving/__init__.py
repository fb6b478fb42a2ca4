"""An exported scheduler behind HTTP."""
