"""Build the shared SQL as Core statements, once for each database.

Each noun has a module. `grammar` holds the parts of a statement, and the spellings that differ between the two databases.
"""
