"""Workers' claims: their order, their limits, and how they end."""
