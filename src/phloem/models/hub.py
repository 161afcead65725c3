"""The hub, where it cannot be reached: its clients try again for about a minute before they say so."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

__all__ = ["endpoint", "reachable", "without_waiting"]

PATIENCE = 5.0
"""Seconds that the hub has for an answer."""


def endpoint() -> str:
    """Where the hub is (HF_ENDPOINT)."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def reachable() -> bool:
    """Whether the hub may be asked (no HF_HUB_OFFLINE) and answers at all; any answer will do, a refusal too."""
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE and _answers()


@cache
def _answers() -> bool:
    """Asked once a process."""
    try:
        urlopen(Request(endpoint(), method="HEAD"), timeout=PATIENCE).close()
    except HTTPError:
        return True
    except (URLError, OSError) as error:  # a certificate that only other clients know is an answer
        return isinstance(getattr(error, "reason", error), ssl.SSLError)
    return True


@contextmanager
def without_waiting() -> Iterator[None]:
    """Inside, a hub that cannot be reached counts as switched off (as by HF_HUB_OFFLINE=1).

    What is in the cache is then found, and what is not is an error at once.
    """
    if reachable():
        yield
        return
    from huggingface_hub import constants

    switches: list[Any] = [constants, *([sys.modules["datasets.config"]] if "datasets.config" in sys.modules else [])]
    before = [switch.HF_HUB_OFFLINE for switch in switches]
    for switch in switches:
        switch.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.HF_HUB_OFFLINE = value
