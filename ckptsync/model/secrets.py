"""What must not be kept of a command line or of settings: values whose names, or whose own shape, speak of secrets.

Rather too much than too little is hidden, but for one word: settings of a language model are full of tokens that are
counts (`max_tokens`), so below such a name a short number is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

__all__ = ["HIDDEN", "hide", "hide_text", "hide_words", "is_secret"]

HIDDEN = "***"
"""Stands in the place of a secret. No setting is known whose value is this."""
_WORD = re.compile(
    r"secrets?|passwords?|passwd|pwd|passphrase|credentials?|apikeys?|secretkey|accesskey|privatekey|authorization"
    r"|bearer"
)
_BEFORE_KEY = frozenset(("api", "access", "private", "secret", "auth", "signing", "encryption"))
_TOKENS = frozenset(("token", "tokens", "authtoken", "accesstoken"))
_COUNT_DIGITS_MAX = 9
_COUNT = re.compile(
    rf"[+-]?(?:[0-9_]{{1,{_COUNT_DIGITS_MAX}}}|[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
)
_NOTHING = frozenset(("", "null", "none", "true", "false"))
_SPLIT = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}://)[^\s/@'\"]+@")
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{8,}|AKIA[A-Z0-9]{16}|ASIA[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,9999}\.[\w-]{8,9999}\.[\w-]*)"
)
_PAIR = re.compile(
    r"""(?P<name>[A-Za-z_][A-Za-z0-9_.-]{0,200})(?P<mid>\\?["']?\s*[:=]\s*)"""
    r"""(?P<value>\\?"(?:[^"\\]|\\[^"])*\\?"|'[^']*'|(?![{\[(])(?:(?:Bearer|Basic|Token)\s+)?[^\s,;&}\])"']+)"""
)
_FLAG = re.compile(r"-{1,2}[A-Za-z][A-Za-z0-9_.-]*")


def is_secret(name: str, value: object = None) -> bool:
    """Whether a setting is not to be kept.

    Args:
        name: dotted; any of its components may speak.
        value: decides for names that speak only of tokens; None = a text that could be one.
    """
    return any(_speaks(component, value) for component in re.split(r"[.@/]", name))


def _speaks(component: str, value: object) -> bool:
    words = [word.lower() for word in _SPLIT.split(component) if word]
    if any(map(_WORD.fullmatch, words)):
        return True
    if any(one in _BEFORE_KEY and two in ("key", "keys") for one, two in pairwise(words)):
        return True
    return not _TOKENS.isdisjoint(words) and not _counts(value)


def _counts(value: object) -> bool:
    if isinstance(value, (bool, float)):
        return True
    if isinstance(value, int):
        return len(str(abs(value))) <= _COUNT_DIGITS_MAX
    return isinstance(value, str) and (value.lower() in _NOTHING or _COUNT.fullmatch(value) is not None)


def hide(name: str, value: object) -> object:
    """The value of a setting, without what is secret in it: in lists and dicts, and within text, too."""
    if value is None or (isinstance(value, (str, bool)) and str(value).lower() in _NOTHING):
        return value
    if isinstance(value, dict):
        return {key: hide(f"{name}.{key}" if name else str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [hide(name, item) for item in value]
    if is_secret(name, value):
        return HIDDEN
    return hide_text(value) if isinstance(value, str) else value


def hide_text(text: str) -> str:
    """Text without `name=value` of secrets, without `user:password@` of URLs, and without known shapes of keys."""
    text = _SHAPES.sub(HIDDEN, _URL.sub(rf"\g<scheme>{HIDDEN}@", text))
    return _PAIR.sub(_without, text)


def _without(pair: re.Match[str]) -> str:
    value = pair["value"]
    bare = value.strip("\\").strip("'\"").strip("\\")
    if not is_secret(pair["name"], bare) or bare.lower() in _NOTHING:
        return pair[0]
    quote = value[: len(value) - len(value.lstrip("\\'\""))]
    return f"{pair['name']}{pair['mid']}{quote}{HIDDEN}{quote}"


def hide_words(words: Iterable[str]) -> tuple[str, ...]:
    """A command line without its secrets: `name=value`, `--name value`, and what stands within a word."""
    return tuple(_hidden_words(words))


def _hidden_words(words: Iterable[str]) -> Iterator[str]:
    flag = ""
    for word in words:
        if flag and not word.startswith("-") and is_secret(flag, word) and word.lower() not in _NOTHING:
            yield HIDDEN
        else:
            yield _hidden_word(word)
        flag = word if _FLAG.fullmatch(word) else ""


def _hidden_word(word: str) -> str:
    name, equals, value = word.partition("=")
    plain = equals and value and not re.search(r"[\s'\"{\[:&,;]", name)
    if plain and is_secret(name.lstrip("+~-"), value) and value.lower() not in _NOTHING:
        return f"{name}={HIDDEN}"
    return hide_text(word)
