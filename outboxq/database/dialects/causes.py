"""Follow an error to the errors that caused it."""

from __future__ import annotations

from collections.abc import Iterator


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and every error that it was raised from, or while it was handled, each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__]


def signal_behind(error: BaseException, before: BaseException | None) -> BaseException | None:
    """Return what `error` replaced: an exception such as KeyboardInterrupt, which is no error. None: there is none.

    `before` is what was handled already when the work began.
    """
    known = () if before is None else {id(one) for one in causes(before)}
    return next((one for one in causes(error) if not isinstance(one, Exception) and id(one) not in known), None)
