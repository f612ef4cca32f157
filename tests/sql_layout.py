"""SQL formatted for reviewers: one clause per line, with its parts below it if one line is too short.

Only white space changes, and a query that occurs more than once in a database's statements is written once.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count

WIDTH = 110
SHORT = 72
"""The maximum length of a subquery that stays on one line."""

Token = str | list["Token"]  # a word includes the blank before it; a list is a text in parentheses

_WORDS = re.compile(r"""(\s*)(--[^\n]*|'(?:[^']|'')*'|"[^"]*"|%\(\w+\)s|[(),;]|[^\s(),;'"]+)""")
_CLAUSES = frozenset(
    [
        "WITH",
        "SELECT",
        "FROM",
        "WHERE",
        "SET",
        "RETURNING",
        "VALUES",
        "ORDER",
        "GROUP",
        "LIMIT",
        "HAVING",
        "UNION",
        "EXCEPT",
        "INSERT",
        "UPDATE",
        "DELETE",
        "FOR",
        "OFFSET",
    ]
) | {"ON CONFLICT", "WITH RECURSIVE"}
_INSIDE = {"UPDATE": ("DO", "FOR"), "SET": ("UPDATE",), "FROM": ("DISTINCT", "DELETE")}
"""Words that do not begin a clause after one of these: DO UPDATE SET, FOR UPDATE, IS DISTINCT FROM, DELETE FROM."""
_PAIRS = frozenset(("ON CONFLICT", "WITH RECURSIVE"))
_JOINS = frozenset(("JOIN", "LEFT", "CROSS"))
STEP = "    "


def composed(statements: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the formatted statements, and the queries that they share, each by its name.

    A comment replaces a shared query. It contains the query's name, and the numbered names that SQLAlchemy uses at that place; the
    query itself numbers them from 1. From the comment, `expanded` can restore the statement.
    """
    parsed = {name: _parsed(text) for name, text in statements.items()}
    shared = _Shared()
    for tokens in parsed.values():
        shared.find(tokens)
    shared.keep_what_is_used_twice(parsed.values())
    for name, tokens in parsed.items():
        shared.name(tokens, name.partition(".")[0])
    laid_out = {name: _laid_out(shared.replaced(tokens)) for name, tokens in parsed.items()}
    return laid_out, {name: _laid_out(shared.replaced(_parsed(key))) for key, name in shared.names.items()}


def expanded(text: str, parts: Mapping[str, str]) -> str:
    """Return a statement from `composed` with the shared queries restored."""

    def in_place(comment: re.Match[str]) -> str:
        query = parts[comment["name"]].strip()
        numbered = dict(zip(_numbered(query), (comment["numbered"] or "").split(", "), strict=False))
        return expanded(_NUMBERED.sub(lambda one: numbered[one[0]], query), parts)

    return _COMMENT.sub(in_place, text)


def references(text: str) -> set[str]:
    """Return the names of the shared queries in a text's comments."""
    return {comment["name"] for comment in _COMMENT.finditer(text)}


def layout(text: str) -> str:
    """Return the formatted text. Each statement ends with its semicolon, followed by an empty line."""
    return _laid_out(_parsed(text))


_LEAST = 400
"""The minimum length of a query that gets a name."""
_NUMBERED = re.compile(r"\b(?!(?:given_)?(?:run|wait)_)[a-z_]+_\d+\b")
"""The names that SQLAlchemy numbers. `run_3` and `wait_3` are columns instead."""
_COMMENT = re.compile(r"/\* (?P<name>[\w.-]+)(?:: (?P<numbered>[\w, ]+))? \*/")


class _Shared:
    """The queries that occur more than once in some statements. A query's key is its text, with its names numbered from 1."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self._sites: Counter[str] = Counter()
        self._keys: dict[int, str] = {}
        self._seen: list[list[Token]] = []
        """The lists whose ids are in `_keys`, kept alive so that no other list gets such an id."""

    def find(self, tokens: list[Token]) -> None:
        for token in tokens:
            if isinstance(token, list):
                self._sites[self._key(token)] += 1
                self.find(token)

    def keep_what_is_used_twice(self, statements: Iterable[list[Token]]) -> None:
        """Forget the queries that occur only within one other shared query, because that query is written only once."""
        kept = {key for key, sites in self._sites.items() if sites > 1 and key}
        while True:
            self.names = dict.fromkeys(kept, "")
            used: Counter[str] = Counter()
            for tokens in (*statements, *map(_parsed, kept)):
                used.update(self._used(tokens))
            if kept == (again := {key for key in kept if used[key] > 1}):
                return
            kept = again

    def name(self, tokens: list[Token], module: str) -> None:
        """Name each shared query after the first statement's module and the query's name in that statement."""
        for at, token in enumerate(tokens):
            if isinstance(token, list):
                key = self._key(token)
                if self.names.get(key) == "":
                    called, taken = f"{module}.{_called(tokens, at)}", set(self.names.values())
                    self.names[key] = next(one for n in count(1) if (one := f"{called}-{n}") not in taken)
                self.name(token, module)

    def replaced(self, tokens: list[Token]) -> list[Token]:
        """Return the tokens with a comment in place of each shared query."""
        found: list[Token] = []
        for token in tokens:
            if isinstance(token, str):
                found.append(token)
            elif self._key(token) in self.names:
                words = [self.names[self._key(token)], ", ".join(_numbered(_inline(token)))]
                found.append([f"/* {': '.join(filter(None, words))} */"])
            else:
                found.append(self.replaced(token))
        return found

    def _used(self, tokens: list[Token]) -> Iterator[str]:
        for token in tokens:
            if isinstance(token, list):
                if (key := self._key(token)) in self.names:
                    yield key
                else:
                    yield from self._used(token)

    def _key(self, token: list[Token]) -> str:
        """Return the key of a query, or "" if the token is not a query or is too short."""
        found = self._keys.get(id(token))
        if found is None:
            text = _inline(token).strip()
            is_query = text.startswith(("SELECT ", "WITH ")) and len(text) >= _LEAST
            found = self._keys[id(token)] = _renumbered(text) if is_query else ""
            self._seen.append(token)
        return found


def _called(tokens: list[Token], at: int) -> str:
    """Return a query's name in its statement, or else the name of the first table that it reads."""
    before = [token for token in tokens[:at] if isinstance(token, list) or token.strip() not in {"", "MATERIALIZED"}]
    after = [token.strip() for token in tokens[at + 1 : at + 4] if isinstance(token, str)]
    if before and isinstance(before[-1], str) and before[-1].strip() == "AS":
        found = next(token.strip() for token in reversed(before[:-1]) if isinstance(token, str))
    elif after[:1] == ["AS"] and not _NUMBERED.match(after[1]):
        found = after[1]
    else:
        found = next(iter(re.findall(r"FROM (\w+)", _inline([tokens[at]]))), "query")
    return re.sub(r"\W", "", found)


def _numbered(text: str) -> list[str]:
    return list(dict.fromkeys(_NUMBERED.findall(text)))


def _renumbered(text: str) -> str:
    numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(1))
    names = {}
    for name in _numbered(text):
        kind = name.rpartition("_")[0]
        names[name] = f"{kind}_{next(numbers[kind])}"
    return _NUMBERED.sub(lambda one: names[one[0]], text)


def _laid_out(tokens: list[Token]) -> str:
    found = []
    for statement in _split(tokens, lambda _, word: word == ";", keep_before=True):
        found.append("\n".join(_clauses(statement, "")))
    return "\n\n".join(found) + "\n"


def _parsed(text: str) -> list[Token]:
    stack: list[list[Token]] = [[]]
    for blank, word in _WORDS.findall(text):
        if word == "(":
            inner: list[Token] = []
            stack[-1] += [f"{' ' if blank else ''}", inner]
            stack.append(inner)
        elif word == ")":
            stack.pop()
        else:
            before = stack[-1][-1] if stack[-1] else None
            if isinstance(before, str) and f"{before.strip()} {word}" in _PAIRS:
                stack[-1][-1] = f"{before} {word}"
            else:
                stack[-1].append((" " if blank or before == "," else "") + word)
    return stack[0]


def _inline(tokens: list[Token]) -> str:
    return "".join(token if isinstance(token, str) else f"({_inline(token).strip()})" for token in tokens)


def _split(
    tokens: list[Token], begins: Callable[[str, str], bool], *, keep_before: bool = False
) -> Iterator[list[Token]]:
    """Split before, or after, each word for which `begins` is true. `begins` gets the previous word and the word."""
    part: list[Token] = []
    last = ""
    for token in tokens:
        word = token.strip() if isinstance(token, str) else ""
        if word and begins(last, word):
            if keep_before:
                yield [*part, token]
                part = []
                last = word
                continue
            if part:
                yield part
                part = []
        part.append(token)
        last = word or last
    if part:
        yield part


def _begins_clause(last: str, word: str) -> bool:
    if word.startswith("--") or last.startswith("--"):
        return True
    if word in _JOINS:
        return last not in {"LEFT", "OUTER", "CROSS"}
    if word == "WITH":
        return not last
    return word in _CLAUSES and last not in _INSIDE.get(word, ())


def _fits(tokens: list[Token], indent: str) -> bool:
    text = _inline(tokens).strip()
    return len(indent) + len(text) <= WIDTH and (len(text) <= SHORT or _queries(tokens) == 0)


def _queries(tokens: list[Token]) -> int:
    return sum(
        _queries(token) if isinstance(token, list) else token.strip() in {"SELECT", "UPDATE", "DELETE", "INSERT"}
        for token in tokens
    )


def _clauses(tokens: list[Token], indent: str) -> list[str]:
    text = _inline(tokens).strip()
    if len(text) <= SHORT and not text.startswith("--"):
        return [indent + text]
    return [line for clause in _split(tokens, _begins_clause) for line in _clause(clause, indent)]


def _clause(tokens: list[Token], indent: str) -> list[str]:
    """Return a clause on one line, or its parts below its first word."""
    if len(indent) + len(_inline(tokens).strip()) <= WIDTH and all(
        isinstance(t, str) or not _queries(t) for t in tokens
    ):
        return [indent + _inline(tokens).strip()]
    head, rest = tokens[:1], tokens[1:]
    parts = list(_split(rest, lambda _, word: word == ",", keep_before=True))
    if len(parts) == 1:
        parts = list(_split(rest, lambda last, word: word in {"AND", "OR"} and last != "BETWEEN"))
    if len(parts) == 1 or str(head[0]).strip() not in {
        "WITH",
        "WITH RECURSIVE",
        "SELECT",
        "SET",
        "WHERE",
        "RETURNING",
        "VALUES",
        "FROM",
    }:
        return _part(tokens, indent)
    return [indent + _inline(head).strip(), *(line for part in parts for line in _part(part, indent + STEP))]


def _part(tokens: list[Token], indent: str) -> list[str]:
    if _fits(tokens, indent):
        return [indent + _inline(tokens).strip()]
    for begins in (
        lambda _, word: word in {"AND", "OR"},
        lambda _, word: word in {"WHEN", "ELSE", "END"},
    ):
        parts = list(_split(tokens, begins))
        if len(parts) > 1:
            first, *others = parts
            return [*_groups(first, indent), *(line for part in others for line in _part(part, _below(part, indent)))]
    return _groups(tokens, indent)


def _below(tokens: list[Token], indent: str) -> str:
    return indent if isinstance(tokens[0], str) and tokens[0].strip() == "END" else indent + STEP


def _groups(tokens: list[Token], indent: str) -> list[str]:
    """Split the parentheses that are too long for one line."""
    lines: list[str] = []
    current = indent
    for token in tokens:
        if isinstance(token, str):
            current += token if current.strip() else token.lstrip()
        elif len(current) + len(_inline([token])) <= WIDTH and (not _queries(token) or len(_inline(token)) <= SHORT):
            current += _inline([token])
        else:
            lines.append(current + "(")
            lines += _inner(token, indent + STEP)
            current = indent + ")"
    return [*lines, current] if current.strip() else lines


def _inner(tokens: list[Token], indent: str) -> list[str]:
    if len(list(_split(tokens, _begins_clause))) > 1:
        return _clauses(tokens, indent)
    parts = list(_split(tokens, lambda _, word: word == ",", keep_before=True))
    return [line for part in parts for line in _part(part, indent)]
