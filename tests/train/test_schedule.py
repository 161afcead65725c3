import pytest

from phloem.config import ConfigError, OptimConfig
from phloem.train.schedule import rate_factor


def factors(**fields) -> list[float]:
    config = OptimConfig(**fields)
    return [rate_factor(n, config) for n in range(config.steps * config.updates_per_step)]


def test_constant_with_and_without_warm_up():
    assert factors(steps=3) == [1.0, 1.0, 1.0]
    assert factors(steps=5, warmup_steps=2) == [0.5, 1.0, 1.0, 1.0, 1.0]


def test_warm_up_counts_steps_and_not_updates():
    assert factors(steps=3, warmup_steps=2, updates_per_step=2) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_and_cosine_fall_and_never_reach_zero():
    assert factors(steps=6, warmup_steps=2, schedule="linear") == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25])
    cosine = factors(steps=4, schedule="cosine")
    assert cosine == pytest.approx([1.0, 0.8536, 0.5, 0.1464], abs=1e-4)


def test_a_warm_up_that_never_ends_is_refused():
    with pytest.raises(ConfigError, match="warm-up must end within the run"):
        OptimConfig(steps=5, warmup_steps=5)
    with pytest.raises(ConfigError, match=r"optim\.betas"):
        OptimConfig(betas=(0.9, 1.0))
