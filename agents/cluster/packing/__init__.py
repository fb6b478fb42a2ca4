"""Rules that pack jobs with fractions of GPUs onto nodes."""
