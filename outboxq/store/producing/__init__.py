"""What makes tasks: one enqueue or many, an emitted event, batches and chains, and the ticks of schedules."""
