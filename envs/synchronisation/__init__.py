"""How gradients are summed over a network: the problem, plans, their execution, their time."""
