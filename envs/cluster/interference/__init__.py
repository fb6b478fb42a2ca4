"""How jobs slow each other down, and what a placement costs them."""
