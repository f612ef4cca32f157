"""The claims of workers: their order, their limits, and their ends."""
