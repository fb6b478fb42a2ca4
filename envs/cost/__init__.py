"""How long an operator takes and how much memory a plan needs."""
