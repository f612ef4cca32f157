"""Claims: what workers take, in which order and within which limits, and how their claims end."""
