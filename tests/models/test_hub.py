"""A hub that cannot be reached costs seconds, not a minute, and what is cached still loads."""

from __future__ import annotations

import ssl
from email.message import Message
from time import monotonic
from typing import Any
from urllib.error import HTTPError, URLError

import pytest
from huggingface_hub import constants
from tiny_models import save_tiny_model
from tiny_tokenizers import QWEN, byte_level

from phloem.config import ModelConfig
from phloem.models import ModelError, hub, load_model
from phloem.tasks import TaskError
from phloem.tasks.rows import read_rows

NO_NETWORK = URLError(OSError(-2, "Name or service not known"))


@pytest.fixture
def answer(monkeypatch):
    """Lets the hub answer the first question with an error."""

    def set_answer(error: Exception) -> None:
        def refuse(*args: Any, **kwargs: Any) -> None:
            raise error

        monkeypatch.setattr(hub, "urlopen", refuse)
        hub._answers.cache_clear()

    yield set_answer
    hub._answers.cache_clear()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NO_NETWORK, False),
        (TimeoutError("timed out"), False),
        (HTTPError("https://hub", 403, "Forbidden", Message(), None), True),
        (URLError(ssl.SSLCertVerificationError("unknown authority")), True),
    ],
)
def test_any_answer_is_one(answer, error, expected):
    answer(error)
    assert hub.reachable() is expected


@pytest.mark.model
def test_what_is_not_cached_is_an_error_at_once(answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer(NO_NETWORK)
    begun = monotonic()
    with pytest.raises(ModelError, match="no-org/no-model is no folder here and not in the hub's cache, and http"):
        load_model(ModelConfig(path="no-org/no-model"))
    with pytest.raises(TaskError, match="no-org/no-data is no file here and not in the hub's cache, and http"):
        read_rows("no-org/no-data")
    assert monotonic() - begun < 20
    assert not constants.HF_HUB_OFFLINE  # as it was


@pytest.mark.model
def test_what_is_cached_is_found(answer, tmp_path, monkeypatch):
    answer(NO_NETWORK)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--some-org--tiny"
    snapshot = repository / "snapshots" / ("0" * 40)
    save_tiny_model(snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    model, _ = load_model(ModelConfig(path="some-org/tiny"))
    assert model.config.vocab_size == len(byte_level(QWEN))
