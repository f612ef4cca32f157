"""Why a task does not run: `rules` decides, `explain` reads what they need, and `reasons` has the words and the commands that help."""
