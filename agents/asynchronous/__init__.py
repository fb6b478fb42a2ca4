"""When workers commit what they learned, and how far ahead of others they may be."""
