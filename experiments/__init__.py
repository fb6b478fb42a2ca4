"""What is run: one small Hydra app each."""
