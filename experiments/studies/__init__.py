"""Many runs: problems x solvers x budgets x seeds as cells, and what their tables say."""
