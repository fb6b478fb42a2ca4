"""ADSP: workers of unequal speed in virtual time, real gradients; rules for when they commit."""
