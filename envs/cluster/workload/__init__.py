"""Which jobs arrive when: traces of real clusters, and generated ones."""
