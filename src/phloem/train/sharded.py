"""Weights, gradients and AdamW's state spread over the processes: PyTorch's FSDP2."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from phloem.forward.shell import Shell
from phloem.forward.split import causal_lm

__all__ = ["like", "overwrite", "set_aside", "shard", "whole"]


def shard(model: nn.Module, device: torch.device, size: int) -> Shell:
    """A copy of a model whose weights are spread over `size` processes, layer by layer.

    Gradients are summed over the processes, not averaged: the loss is divided by counts over all of them already.
    """
    shell = Shell(copy.deepcopy(model))
    mesh = init_device_mesh(device.type, (size,))
    names = set(causal_lm(model)._no_split_modules or ())
    for module in list(shell.module.modules()):
        if type(module).__name__ in names:
            fully_shard(module, mesh=mesh)
    # Its own weights too go after a forward: one without a backward (the reference's) would leave them to the next.
    fully_shard(shell, mesh=mesh, reshard_after_forward=True)
    for module in shell.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return shell


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, on every process; to be called by all of them."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor, spread over the processes as a parameter is."""
    tensor = tensor.to(parameter.device)
    if not isinstance(parameter, DTensor):
        return tensor
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)


@torch.no_grad()
def set_aside(parameter: nn.Parameter) -> Tensor:
    """The values of a parameter that is about to be overwritten."""
    return parameter.detach().clone() if isinstance(parameter, DTensor) else parameter.data


@torch.no_grad()
def overwrite(parameter: nn.Parameter, value: Tensor) -> None:
    """Makes `value` the parameter's: by moving a pointer, or where FSDP2 holds the memory, by copying into it."""
    if isinstance(parameter, DTensor):
        parameter.copy_(value)
    else:
        parameter.data = value
