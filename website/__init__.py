"""The documentation site: its navigation, its build and its pictures."""
