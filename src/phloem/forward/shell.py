"""A module around a model through which any of its functions runs as a forward.

Logprobs of trees call a model's body and head one by one, past the forward of the whole. Where weights are spread over
processes (FSDP2), they are gathered as a forward begins: of the shell's, then, which is what gets sharded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor, nn

__all__ = ["Shell", "inside"]

Output = TypeVar("Output", Tensor, tuple[Tensor, ...])


class Shell(nn.Module):
    """Holds a model as `module`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[[nn.Module], Output]) -> Output:
        """`function` of the model; it returns tensors, so that whoever hooks into the forward finds them."""
        return function(self.module)


def inside(model: nn.Module, function: Callable[[nn.Module], Output]) -> Output:
    """`function` of the model, through its shell if it has one."""
    return model(function) if isinstance(model, Shell) else function(model)
