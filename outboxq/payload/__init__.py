"""Arguments and results as strict JSON, and back."""
