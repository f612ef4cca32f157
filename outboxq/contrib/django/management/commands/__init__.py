"""The package whose modules are commands of `manage.py`."""
