"""One forward over packed trees: the log-probability of every trained token, each computed once.

At a fork one position predicts several tokens; each gets its own log-probability, from one set of logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import nn

from phloem.forward.attention import ENGINES, attention_name, pack_arguments
from phloem.forward.head import CHUNK, Targets, head_logprobs
from phloem.forward.pack import Pack
from phloem.forward.shell import inside
from phloem.forward.split import Head, causal_lm, split

__all__ = ["Logprobs", "checked", "logprobs"]


@dataclass(frozen=True, eq=False)
class Logprobs:
    """Aligned with `pack.trained_E`.

    Attributes:
        logprobs_E: log-probability of each trained token, in nats, in float32 or wider.
        entropy_E: entropy of the distribution each was drawn from, in nats; differentiable too.
    """

    logprobs_E: Float[torch.Tensor, " E"]
    entropy_E: Float[torch.Tensor, " E"]


def logprobs(model: nn.Module, pack: Pack, temperature: float = 1.0, chunk: int = CHUNK) -> Logprobs:
    """Log-probabilities of the trained tokens under log softmax(logits / temperature).

    The body runs once over the pack's distinct tokens; the head only at positions that predict a trained token,
    as many logits at a time as `chunk` positions have, so that none of prompts are made and memory is bounded.

    Runs under whatever gradient mode and autocast the caller set. Body and head are called past the forward of the
    whole model; what has to happen around that (the gathering of spread weights) happens in a `Shell`.

    Args:
        model: a causal language model on which `forward.prepare` was called, with or without adapters, or its shell.
        pack: on the model's device.
        temperature: of sampling, > 0.
        chunk: how many positions' worth of logits are held at once.

    Raises:
        ValueError: the model was not prepared, the pack is on another device, trains no token or
            is longer than the positions the model has learned, or a bad argument.
    """
    return Logprobs(*inside(model, lambda held: _logprobs(held, pack, temperature, chunk)))


def _logprobs(model: nn.Module, pack: Pack, temperature: float, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
    body, head = checked(model, pack, temperature, chunk)
    hidden_T = body(**pack_arguments(pack)).last_hidden_state[0]
    hidden_P = hidden_T.index_select(0, pack.predict_P)
    order = torch.argsort(pack.slot_E, stable=True)
    targets = Targets(pack.target_E[order], pack.slot_E[order])
    sorted_E, entropy_P = head_logprobs(hidden_P, head, targets, temperature, chunk)
    logprobs_E = torch.empty_like(sorted_E).index_copy(0, order, sorted_E)
    return logprobs_E, entropy_P.index_select(0, pack.slot_E)


def checked(model: nn.Module, pack: Pack, temperature: float, chunk: int) -> tuple[nn.Module, Head]:
    """The body and the head of a model that can run on a pack; raises what `logprobs` raises."""
    if temperature <= 0 or chunk < 1:
        raise ValueError(f"temperature is {temperature} and chunk {chunk}; both must be positive")
    if len(pack.trained_E) == 0:
        raise ValueError("no token of the pack was sampled: nothing to take a log-probability of")
    whole = causal_lm(model)
    if whole.config._attn_implementation not in [attention_name(engine) for engine in ENGINES]:
        raise ValueError(f"{type(whole).__name__} cannot run on trees yet: call forward.prepare on it first")
    longest, limit = pack.longest, _learned_positions(whole)
    if limit is not None and longest > limit:
        raise ValueError(f"a row of {longest} tokens is longer than the {limit} positions the model has learned")
    if pack.tokens_T.device != whole.device:
        raise ValueError(f"the pack is on {pack.tokens_T.device}, the model on {whole.device}: use pack.to(...)")
    return split(model)


def _learned_positions(whole: Any) -> int | None:
    """How many positions a model without rotary embeddings has; None: no limit."""
    config = whole.config.get_text_config()
    return None if getattr(config, "rope_parameters", None) else getattr(config, "max_position_embeddings", None)
