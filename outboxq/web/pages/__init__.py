"""The pages of the dashboard: each module has one, a function from a request to a view."""
