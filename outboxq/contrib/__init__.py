"""Where outboxq meets frameworks. Each module is imported by those who use that framework, and by nobody else."""
