"""A live Slurm: what it says of its jobs and nodes, changes to single jobs, one of its own here."""
