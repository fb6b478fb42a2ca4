"""Time shares of gangs on pools of GPUs: who should hold GPUs for which part of the time."""
