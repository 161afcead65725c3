"""A sandbox for programs that a model wrote, on bubblewrap. `docs/rewards-code.md` says what it promises.

`run` runs one program on standard input and output; `talk` pairs a completion's code with the tests that call it.
"""

from phloem.rewards.sandbox.launch import SandboxUnavailable
from phloem.rewards.sandbox.limits import Limits
from phloem.rewards.sandbox.run import Ended, Told, require, run, talk

__all__ = ["Ended", "Limits", "SandboxUnavailable", "Told", "require", "run", "talk"]
