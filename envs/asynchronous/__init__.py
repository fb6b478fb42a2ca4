"""Training with workers of unequal speed on a virtual clock; gradients are real, passed in."""
