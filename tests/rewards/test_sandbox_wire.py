"""Any plain value survives the way through the wire format; any bytes at all are read or refused."""

from __future__ import annotations

import contextlib
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from phloem.rewards.sandbox.inside.wire import WireError, decode, encode

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.builds(Fraction, st.integers(), st.integers(1))
)
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner), max_leaves=5)
VALUES = st.recursive(
    HASHABLE | st.sets(HASHABLE),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(HASHABLE, inner),
    max_leaves=20,
)


def refuse(value):
    raise AssertionError(f"{value!r} is plain data")


@given(VALUES)
def test_values_survive(value):
    copy = decode(encode(value, refuse), refuse)
    assert copy == value
    assert type(copy) is type(value)


@given(st.binary() | st.text("ntTFisfbyclezdrhCDQ0123456789:-", max_size=60).map(str.encode))
def test_bytes_are_read_or_refused(data):
    with contextlib.suppress(WireError):
        decode(data, handle=str)
