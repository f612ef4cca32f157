"""The shared SQL, as Core statements built once per database.

A module per noun; `grammar` holds what a statement is made of and what the two databases spell differently.
"""
