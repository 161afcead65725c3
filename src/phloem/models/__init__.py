"""Models and tokenizers: loading, adapters, chat templates."""

from phloem.models.chat import decode_completion, decode_raw, encode_completion, encode_prompt
from phloem.models.load import ModelError, check_trainable, load_model, load_skeleton, load_tokenizer
from phloem.models.tokenizer import check_tokenizer, eos_ids

__all__ = [
    "ModelError",
    "check_tokenizer",
    "check_trainable",
    "decode_completion",
    "decode_raw",
    "encode_completion",
    "encode_prompt",
    "eos_ids",
    "load_model",
    "load_skeleton",
    "load_tokenizer",
]
