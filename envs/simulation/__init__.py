"""The compiled kernels that play a plan through, and what they record."""
