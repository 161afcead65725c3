"""The loss on tree tokens: clipped surrogate, KL, and the sums behind the metrics."""

from phloem.loss.kl import k3
from phloem.loss.metrics import LossSums, loss_sums
from phloem.loss.surrogate import surrogate

__all__ = ["LossSums", "k3", "loss_sums", "surrogate"]
