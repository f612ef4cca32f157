"""Convert arguments and results to strict JSON and back."""
