"""The claims of workers: their order, their limits, and how they end."""
