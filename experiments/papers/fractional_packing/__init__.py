"""Jobs with fractions of GPUs packed on a cluster until no more fit."""
