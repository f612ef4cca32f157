"""SQL as a reviewer reads it: a clause a line, its parts below it where one line is too short. Only white space is changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

WIDTH = 110
SHORT = 72
"""A query within another may stay in one line up to this length."""

Token = str | list["Token"]  # a blank before a word is part of it; a list is what stands in parentheses

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
"""A word that begins no clause behind one of these: DO UPDATE SET, FOR UPDATE, IS DISTINCT FROM, DELETE FROM."""
_PAIRS = frozenset(("ON CONFLICT", "WITH RECURSIVE"))
_JOINS = frozenset(("JOIN", "LEFT", "CROSS"))
STEP = "    "


def layout(text: str) -> str:
    """The text in lines; each statement ends with its semicolon, and an empty line follows."""
    found = []
    for statement in _split(_parsed(text), lambda _, word: word == ";", keep_before=True):
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
    """Cut before each word that begins something, or behind it; it is asked with the word before it."""
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
    """A clause in its line, or its parts below its first word."""
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
    """Open the parentheses that are too long for a line."""
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
