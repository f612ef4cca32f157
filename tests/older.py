"""What the tests use of other packages' later releases, given to the oldest ones that are admitted."""

from __future__ import annotations

from functools import partialmethod

from click.testing import CliRunner, Result


def keep_stderr_apart() -> None:
    """Have click's runner before 8.2 say what stood on stderr, as later ones do by themselves."""
    if "mix_stderr" not in CliRunner.__init__.__code__.co_varnames:
        return
    CliRunner.__init__ = partialmethod(CliRunner.__init__, mix_stderr=False)  # type: ignore[assignment, method-assign]
    Result.output = property(lambda result: result.stdout + result.stderr)  # type: ignore[assignment, method-assign]
