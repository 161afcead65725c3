"""What several files of tests of runs start from."""

from __future__ import annotations

from pathlib import Path

import pytest
from letters_run import letters_tokenizer
from tiny_models import save_tiny_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """A model for the letters; a test that spoils it does so to a copy."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "model", letters_tokenizer(), initializer_range=0.05)
