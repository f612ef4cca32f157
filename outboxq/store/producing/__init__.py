"""Transactions that create tasks: enqueue, emit, batches and chains, and the ticks of schedules."""
