"""Papers with a question of their own, one folder each; `paper.yaml` adds their names and commands.

A folder may import every floor; nothing imports it but `experiments.config.papers`, by name.
"""
