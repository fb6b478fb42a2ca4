"""Who takes which price: reservation prices, programs on a grid, and what is learned."""
