"""Plain data between two processes that do not trust each other.

Values are rebuilt from their exact built-in type, so whatever a completion returns, the checker holds plain ints,
strings, lists and so on: no subclass, no `__eq__` of the completion's. Anything else travels as a handle, a number that
means something to the candidate's side only.

A value is one letter for its kind, a count, a colon, and then that many bytes (or, of a container, that many values):
`i1:7`, `s5:hello`, `l2:i1:1n0:`. A message is four bytes of length (big endian) and one value.
"""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

MAX_REPLY_BYTES = 4 << 20
"""Longest message that the checker reads from a candidate."""
_COUNT_DIGITS = 10


class WireError(Exception):
    """A message that is too long, cut short, or not in the format above."""


class Closed(Exception):
    """The other side has closed its end."""


_CONTAINERS = ((list, b"l"), (tuple, b"t"), (set, b"e"), (frozenset, b"z"))
_CLASSES = (bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, range, object)
_NUMBER_CLASSES = (("decimal", "Decimal", b"D"), ("fractions", "Fraction", b"Q"))


def encode(value: Any, opaque: Callable[[Any], int]) -> bytes:
    """`value` in the format above; `opaque(v)` gives the handle of a value that is not plain data.

    Subclasses of a plain type are flattened to it. Raises RecursionError on nesting deeper than the interpreter allows.
    """
    chunks: list[bytes] = []
    _encode(value, opaque, chunks.append)
    return b"".join(chunks)


def _encode(value: Any, opaque: Callable[[Any], int], put: Callable[[bytes], None]) -> None:
    kind = type(value)
    scalar = _scalar(value, kind)
    if scalar is not None:
        letter, body = scalar
        put(b"%b%d:%b" % (letter, len(body), body))
        return
    for base, letter in _CONTAINERS:
        if issubclass(kind, base):
            items = list(base.__iter__(value))
            put(b"%b%d:" % (letter, len(items)))
            for item in items:
                _encode(item, opaque, put)
            return
    if issubclass(kind, dict):
        pairs = list(dict.items(value))
        put(b"d%d:" % (2 * len(pairs)))
        for pair in pairs:
            _encode(pair[0], opaque, put)
            _encode(pair[1], opaque, put)
    elif kind is range:
        put(b"r3:")
        for part in (value.start, value.stop, value.step):
            _encode(part, opaque, put)
    else:
        body = b"%d" % opaque(value)
        put(b"h%d:%b" % (len(body), body))


def _scalar(value: Any, kind: type) -> tuple[bytes, bytes] | None:
    """Letter and bytes of a value that holds no others; None for containers and what is opaque."""
    if value is None or kind is bool:
        return {None: b"n", True: b"T", False: b"F"}[value], b""
    if issubclass(kind, int):
        return b"i", hex(int.__int__(value)).encode()  # hexadecimal: linear in the number's length
    if issubclass(kind, str):
        return b"s", str.encode(value, "utf-8", "surrogatepass")
    if issubclass(kind, float):
        return b"f", float.__repr__(value).encode()
    if issubclass(kind, bytes):
        return b"b", bytes(memoryview(value))
    if issubclass(kind, bytearray):
        return b"y", bytes(memoryview(value))
    if kind is complex:
        return b"c", f"{value.real!r} {value.imag!r}".encode()
    if kind is type and value in _CLASSES:
        return b"C", value.__name__.encode()
    for module, name, letter in _NUMBER_CLASSES:  # without importing them where nobody has
        if module in sys.modules and kind is getattr(sys.modules[module], name, None):
            return letter, str(value).encode()
    return None


def decode(data: bytes, handle: Callable[[int], Any]) -> Any:
    """The value that `encode` wrote; `handle(n)` makes what stands for an opaque one. Raises WireError."""
    try:
        value, end = _decode(data, 0, handle)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise WireError(f"not plain data: {str(error)[:100]}") from None
    if end != len(data):
        raise WireError("more than one value")
    return value


def _decode(data: bytes, start: int, handle: Callable[[int], Any]) -> tuple[Any, int]:
    """A value and where it ends."""
    colon = data.index(b":", start + 1, start + 2 + _COUNT_DIGITS)
    letter, count, position = data[start : start + 1], int(data[start + 1 : colon]), colon + 1
    if letter not in _MAKERS:
        body = data[position : position + count]
        if count < 0 or len(body) < count:
            raise ValueError("cut short")
        return (handle(int(body)) if letter == b"h" else _READERS[letter](body)), position + count
    items = []
    for _ in range(count):
        item, position = _decode(data, position, handle)
        items.append(item)
    return _MAKERS[letter](items), position


def _complex(body: bytes) -> complex:
    real, imaginary = body.split(b" ")
    return complex(float(real), float(imaginary))


def _class(body: bytes) -> type:
    found = getattr(builtins, body.decode(), None)
    if found not in _CLASSES:
        raise ValueError("an unknown class")
    return found


def _decimal(body: bytes) -> Any:
    from decimal import Decimal

    return Decimal(body.decode())


def _fraction(body: bytes) -> Any:
    from fractions import Fraction

    return Fraction(body.decode())


_READERS: dict[bytes, Callable[[bytes], Any]] = {
    b"n": lambda _: None,
    b"T": lambda _: True,
    b"F": lambda _: False,
    b"i": lambda body: int(body, 16),
    b"s": lambda body: body.decode("utf-8", "surrogatepass"),
    b"f": float,
    b"b": bytes,
    b"y": bytearray,
    b"c": _complex,
    b"C": _class,
    b"D": _decimal,
    b"Q": _fraction,
}
_MAKERS: dict[bytes, Callable[[list], Any]] = {
    b"l": list,
    b"t": tuple,
    b"e": set,
    b"z": frozenset,
    b"d": lambda items: dict(zip(items[::2], items[1::2], strict=True)),
    b"r": lambda items: range(*items),
}


def send(stream: BinaryIO, body: bytes) -> None:
    """Writes one message. Raises Closed if nobody reads any more."""
    try:
        stream.write(len(body).to_bytes(4, "big") + body)
        stream.flush()
    except (BrokenPipeError, ValueError) as error:  # ValueError: the file object was closed
        raise Closed from error


def receive(stream: BinaryIO, max_bytes: int | None = None) -> bytes:
    """Reads one message. Raises Closed at the end of the stream, WireError if it is too long."""
    length = int.from_bytes(_read(stream, 4), "big")
    if max_bytes is not None and length > max_bytes:
        raise WireError(f"a message of {length} bytes; at most {max_bytes} are read")
    return _read(stream, length)


def _read(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise Closed
    return data
