"""Columns of a batch of schedulers' decisions beside RLlib's own, and names of metrics."""

TAUGHT = "taught_actions"  # (n,) what the teacher would have done; where it is, policies are cloned
REMAINING_BIN = "remaining_bin"  # (n, W + M) bin of the seconds a job still needs, `NO_BIN`: no job
POSTERIOR = "posterior"  # (n, W + M, bins) logits over these bins
NO_BIN = -1

CROSS_ENTROPY = "cloning_cross_entropy"  # nats
AGREEMENT = "cloning_agreement"  # share of the teacher's actions that are the most probable ones
POSTERIOR_LOSS = "posterior_cross_entropy"  # nats
KL = "approximate_kl"  # from the sampling policy, nats
CLIPPED = "clipped_share"  # of the decisions, beyond the clip
