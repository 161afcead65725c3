"""The character level of the expression reader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from phloem.rewards.maths.expression import Unreadable

__all__ = ["WORD", "Scanner"]

WORD = re.compile(r"[A-Za-z]+")
MAX_DEPTH = 60


class Scanner:
    """A position in a text, and the small steps every reader takes."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth, self.bars = text, 0, 0, 0

    def peek(self) -> str:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1
        return self.text[self.at] if self.at < len(self.text) else ""

    def take(self, token: str) -> bool:
        self.peek()
        if not self.text.startswith(token, self.at):
            return False
        end = self.at + len(token)
        if token[0] == "\\" and token[-1].isalpha() and self.text[end : end + 1].isalpha():
            return False  # \in is not the start of \infty
        self.at = end
        return True

    def need(self, token: str) -> None:
        if not self.take(token):
            raise Unreadable(f"expected {token!r} at {self.text[self.at : self.at + 20]!r}")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def command(self) -> str:
        """The name of the macro that comes next, without taking it."""
        if self.peek() != "\\":
            return ""
        found = WORD.match(self.text, self.at + 1)
        return found.group() if found else ""

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Reads one level further down; Unreadable past `MAX_DEPTH` of them."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("nested too deep")
        yield
        self.depth -= 1

    def fail(self) -> NoReturn:
        raise Unreadable(f"unexpected {self.text[self.at : self.at + 20]!r}")
