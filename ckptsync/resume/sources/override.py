"""One override `[+|++|~]key[@package][=value]` as Hydra 1.3 reads it (hydra/grammar/Override{Lexer,Parser}.g4).

Values are read without Hydra. What only the trainer can make a value of is left out: interpolations, functions, sweeps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

__all__ = ["Override", "Unreadable", "parse_override", "parse_value"]

_DEPTH_MAX = 50
_CHARS_MAX = 128 * 1024  # of a word: MAX_ARG_STRLEN of Linux
_DIGITS_MAX = 4000
"""Python makes no number of more than 4300 digits."""
_INT = r"(?:0|[1-9](?:_?[0-9])*)"
_POINT = rf"(?:{_INT}?\.[0-9](?:_?[0-9])*|{_INT}\.)"
_EXPONENT = rf"(?:(?:{_POINT}|{_INT})[eE][+-]?[0-9](?:_?[0-9])*)"
_KEY = r"(?:[A-Za-z_$][A-Za-z0-9_$-]*|(?:[A-Za-z_$][A-Za-z0-9_$-]*|[0-9]+)(?:\.(?:[A-Za-z_$][A-Za-z0-9_$-]*|[0-9]+))+)"
_GROUP = r"[A-Za-z_][A-Za-z0-9_-]*(?:/[A-Za-z_][A-Za-z0-9_-]*)+"
_OVERRIDE = re.compile(
    rf"(?P<mode>\+{{0,2}}|~)(?P<key>{_GROUP}|{_KEY})(?P<package>@(?:{_KEY})?)?(?:=(?P<value>.*))?", re.DOTALL
)
_TOKENS = tuple(  # the longest match wins, then the first one
    (name, re.compile(pattern))
    for name, pattern in (
        ("(", r"[ \t]*\([ \t]*"),
        (",", r"[ \t]*,[ \t]*"),
        (")", r"[ \t]*\)"),
        ("[", r"\[[ \t]*"),
        ("]", r"[ \t]*\]"),
        ("{", r"\{[ \t]*"),
        ("}", r"[ \t]*\}"),
        (":", r"[ \t]*:[ \t]*"),
        ("=", r"[ \t]*=[ \t]*"),
        ("float", rf"[+-]?(?:{_EXPONENT}|{_POINT}|[Ii][Nn][Ff]|[Nn][Aa][Nn])"),
        ("int", rf"[+-]?{_INT}"),
        ("bool", r"[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]"),
        ("null", r"[Nn][Uu][Ll][Ll]"),
        ("char", r"[/\-\\+.$%*@?|]"),
        ("id", r"[A-Za-z_][A-Za-z0-9_-]*"),
        ("escaped", r"(?:\\[\\()\[\]{}:=, \t])+"),
        ("space", r"[ \t]+"),
        ("quoted", r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""),
        ("interpolation", r"\$\{[^}]+\}"),
    )
)
_PRIMITIVE = frozenset(("float", "int", "bool", "null", "char", "id", "escaped", "space", ":"))
_QUOTED = {quote: re.compile(rf"\\+{quote}") for quote in ("'", '"')}


class Unreadable(ValueError):
    """A value that Hydra refuses, or of which only the trainer knows what it is."""


@dataclass(frozen=True, slots=True)
class Override:
    """What a word of the command line changes.

    Attributes:
        mode: "" changes, "+" adds, "++" does either, "~" takes away.
        name: the key as it is spelled, with its package.
        text: the value as it is spelled; None = there is none.
    """

    mode: str
    name: str
    text: str | None


def parse_override(word: str) -> Override | None:
    """What a word overrides; None = it is no override."""
    found = _OVERRIDE.fullmatch(word)
    if found is None:
        return None
    mode = found["mode"]
    if found["value"] is None:
        return Override(mode, _named(found), None) if mode == "~" else None
    return Override(mode, _named(found), found["value"].lstrip(" \t"))


def _named(found: re.Match[str]) -> str:
    return found["key"] + (found["package"] or "")


def parse_value(text: str) -> object:
    """The value that Hydra makes of a text, as JSON has it (floats may be inf and nan).

    Raises:
        Unreadable: it is none, or it is an interpolation, a function or a sweep.
    """
    if not text:
        return ""
    if len(text) > _CHARS_MAX:
        _refuse("too long")
    parser = _Parser(list(_scan(text)))
    value = parser.element()
    parser.finish()
    return value


class _Token(NamedTuple):
    kind: str
    text: str


def _scan(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        matches = ((name, match.end()) for name, regex in _TOKENS if (match := regex.match(text, at)) is not None)
        name, end = max(matches, key=lambda each: each[1], default=("", at))
        if end == at:
            _refuse(text[at : at + 20])
        yield _Token(name, text[at:end])
        at = end


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0

    @property
    def _kind(self) -> str:
        return self._tokens[self._at].kind if self._at < len(self._tokens) else ""

    def finish(self) -> None:
        """Nothing may follow; a comma would make it a sweep."""
        if self._at != len(self._tokens):
            _refuse(self._tokens[self._at].text)

    def element(self) -> object:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            _refuse("too deep")
        try:
            if self._kind == "[":
                return self._items("]")
            if self._kind == "{":
                return {_key(key): value for key, value in dict(self._pairs()).items()}
            return self._primitive(_PRIMITIVE)
        finally:
            self._depth -= 1

    def _items(self, closing: str) -> list[object]:
        self._at += 1
        found: list[object] = []
        while self._kind != closing:
            if found:
                self._take(",")
            found.append(self.element())
        self._at += 1
        return found

    def _pairs(self) -> Iterator[tuple[object, object]]:
        self._at += 1
        first = True
        while self._kind != "}":
            if not first:
                self._take(",")
            first = False
            key = self._primitive(_PRIMITIVE - {":"})
            self._take(":")
            yield key, self.element()
        self._at += 1

    def _take(self, kind: str) -> None:
        if self._kind != kind:
            _refuse(f"no {kind}")
        self._at += 1

    def _primitive(self, allowed: frozenset[str]) -> object:
        if self._kind == "quoted":
            self._at += 1
            return _unquoted(self._tokens[self._at - 1].text)
        begin = self._at
        while self._kind in allowed:
            self._at += 1
        if self._kind in ("interpolation", "("):
            _refuse("only the trainer knows")
        return _joined(self._tokens[begin : self._at])


def _joined(tokens: list[_Token]) -> object:
    if tokens and tokens[0].kind == "space":
        tokens = tokens[1:]
    if tokens and tokens[-1].kind == "space":
        tokens = tokens[:-1]
    if not tokens:
        _refuse("no value")
    if len(tokens) > 1:
        return "".join(token.text[1::2] if token.kind == "escaped" else token.text for token in tokens)
    kind, text = tokens[0]
    if kind == "int":
        return int(text) if len(text) <= _DIGITS_MAX else _refuse("too long")
    if kind == "float":
        return float(text)
    if kind == "bool":
        return text.lower() == "true"
    if kind == "null":
        return None
    return text[1::2] if kind == "escaped" else text


def _unquoted(text: str) -> str:
    """Backslashes are halved before a quote, and kept elsewhere."""
    halved = _QUOTED[text[0]].sub(lambda match: match[0][1::2] if len(match[0]) > 1 else match[0], text[1:])
    body = halved if _ends_inside(text) else halved[:-1]
    if "${" in body:
        _refuse("only the trainer knows")
    return body


def _ends_inside(text: str) -> bool:
    """Whether the closing quote went with the backslashes before it: they were even in number."""
    return text[-2] == "\\"


def _key(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def _refuse(what: str) -> NoReturn:
    msg = f"cannot be read here: {what!r}"
    raise Unreadable(msg)
