"""What a model may not have if rollouts are to share its tokens, by name; and the dropout that has to go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from phloem.forward.split import causal_lm
from phloem.kinds import PhloemError

__all__ = ["CannotServe", "declared_windows", "refuse", "silence"]

LAYERS_SERVED = {"full_attention", "sliding_attention"}
# Of these the frequencies depend on the longest row of a batch, which a tree does not share with its rows.
ROPE_REFUSED = {"dynamic", "longrope"}


class CannotServe(PhloemError, ValueError):
    """The tree forward cannot run this model exactly; the message names what stands in the way."""


def refuse(model: nn.Module) -> None:
    """Raises CannotServe, naming every feature of the model that the tree forward is known not to serve."""
    whole = causal_lm(model)
    config = whole.config
    found = [what for what in (*_of_architecture(model, whole), *_of_config(config.get_text_config())) if what]
    if found:
        raise CannotServe(f"{type(whole).__name__} cannot run on trees: it has {', '.join(found)}")


def _of_architecture(model: nn.Module, whole: Any) -> Iterator[str]:
    config = whole.config
    if config.is_encoder_decoder:
        yield "an encoder and a decoder"
    if getattr(config, "vision_config", None) is not None or getattr(config, "audio_config", None) is not None:
        yield "inputs other than text"
    if getattr(whole, "_is_stateful", False):
        yield "layers that carry a state from token to token (linear attention or state space)"
    elif not whole._can_set_attn_implementation():
        yield "attention that does not go through transformers' attention interface"
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        yield "learned prompts (peft prompt learning)"
    if any(name.endswith("sinks") for name, _ in whole.named_parameters()):
        yield "attention sinks"


def _of_config(config: Any) -> Iterator[str]:
    for kind in sorted(set(getattr(config, "layer_types", None) or ()) - LAYERS_SERVED):
        yield f"layers of type {kind}"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        yield "attention soft caps (attn_logit_softcapping)"
    if getattr(config, "attention_chunk_size", None) is not None:
        yield "chunked attention (attention_chunk_size)"
    if getattr(config, "alibi", False) or getattr(config, "position_embedding_type", None) == "alibi":
        yield "ALiBi"
    relative = str(getattr(config, "position_embedding_type", "")).startswith("relative")
    if relative or getattr(config, "relative_attention_num_buckets", None) is not None:
        yield "relative position bias"
    if getattr(config, "use_bidirectional_attention", False) or not getattr(config, "is_causal", True):
        yield "attention that is not causal"
    for rope in _ropes(config):
        if rope.get("rope_type") in ROPE_REFUSED:
            yield f"rotary frequencies that change with the length of the batch (rope type {rope['rope_type']})"
        if "mrope_section" in rope:
            yield "rotary positions of several dimensions (mrope_section)"
    if getattr(config, "expert_capacity", None) is not None:
        yield "experts with a capacity: which tokens they drop depends on the other tokens"


def _ropes(config: Any) -> list[dict[str, Any]]:
    """The rope settings of a model; some have one for each type of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)]
    return nested or [rope]


def declared_windows(config: Any) -> set[int | None]:
    """The sliding windows that a configuration declares for its layers; None stands for full attention."""
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", None) is False:
        window = None
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return {window}
    return {window if kind == "sliding_attention" else None for kind in kinds}


def silence(model: nn.Module) -> list[str]:
    """Sets every dropout (and router noise) of a model to 0, except that of LoRA adapters.

    Returns:
        What was changed or kept, as lines for the user.
    """
    config = causal_lm(model).config.get_text_config()
    changed = _zero(config)
    adapters: set[float] = set()
    for path, module in model.named_modules():
        if "lora_dropout" in path:
            if isinstance(module, nn.Dropout) and module.p > 0:
                adapters.add(module.p)
        elif isinstance(module, nn.modules.dropout._DropoutNd):
            if module.p > 0 and module.p not in changed.values():
                changed[path] = module.p
            module.p = 0.0
        else:
            rates = _zero(module)
            changed.update({f"{path}.{name}": p for name, p in rates.items() if p not in changed.values()})
    lines = []
    if changed:
        lines.append("dropout set to 0: " + ", ".join(f"{name} {p:g}" for name, p in sorted(changed.items())))
    if adapters:
        kept = ", ".join(f"{p:g}" for p in sorted(adapters))
        lines.append(f"LoRA dropout {kept} is kept: one mask per distinct token, the same for all rollouts through it")
    return lines


def _zero(owner: Any) -> dict[str, float]:
    """Sets an object's own dropout rates to 0; returns what they were."""
    rates = {
        name: value
        for name, value in vars(owner).items()
        if ("drop" in name or name.endswith("jitter_noise"))
        and not name.startswith(("summary_", "classifier_"))
        and isinstance(value, float)
        and value > 0
    }
    for name in rates:
        setattr(owner, name, 0.0)
    return rates
