"""Explain why a task is not running: `sentences` has the rules, `explain` reads the facts for them, and `reasons` has
the reasons, their descriptions and their cures.
"""
