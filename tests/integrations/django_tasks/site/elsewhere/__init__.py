"""A package that is not an app. Its tasks may be imported because OPTIONS names it."""
