"""Features of other packages' later releases that the tests use, added to the oldest supported releases."""

from __future__ import annotations

from functools import partialmethod

from click.testing import CliRunner, Result


def keep_stderr_apart() -> None:
    """Make the test runner of click before 8.2 report stderr, as later releases do."""
    if "mix_stderr" not in CliRunner.__init__.__code__.co_varnames:
        return
    CliRunner.__init__ = partialmethod(CliRunner.__init__, mix_stderr=False)  # type: ignore[assignment, method-assign]
    Result.output = property(lambda result: result.stdout + result.stderr)  # type: ignore[assignment, method-assign]
