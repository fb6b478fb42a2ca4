"""What is trained on the virtual clock: small real models."""
