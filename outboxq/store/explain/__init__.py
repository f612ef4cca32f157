"""Explain why a task does not run: `rules` decides, `explain` reads the facts, and `reasons` has the words and the commands that
help.
"""
