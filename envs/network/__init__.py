"""How transfers share links: fluid flows, allocated bandwidth."""
