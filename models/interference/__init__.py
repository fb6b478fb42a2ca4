"""How jobs slow each other down: networks fitted to measured pairs."""
