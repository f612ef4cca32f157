"""Transactions that create tasks: enqueue, emit, batches and chains, and schedule ticks."""
