"""How much sandboxed code may use."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]

_MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Hard limits of one sandbox; the kernel and the launcher enforce them.

    `wall_seconds` ends everything; `cpu_seconds` (user + system) and `memory_bytes` (address space) hold for each
    process, `processes` counts threads too, so that all memory is below `processes * memory_bytes + tmp_bytes`.
    `file_bytes` bounds every single file, standard output among them; `tmp_bytes` all files in /tmp together.

    Raises ValueError: a limit that is not positive, or memory below the 64 MiB that the interpreter needs.
    """

    wall_seconds: float = 10.0
    cpu_seconds: int = 5
    memory_bytes: int = 512 * _MIB
    processes: int = 8
    tmp_bytes: int = 16 * _MIB
    file_bytes: int = 8 * _MIB
    open_files: int = 64

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0 or (name != "wall_seconds" and not isinstance(value, int)):
                kind = "a positive number" if name == "wall_seconds" else "a positive integer"
                raise ValueError(f"Limits.{name} is {value!r}; it must be {kind}")
        if self.memory_bytes < 64 * _MIB:
            raise ValueError(f"Limits.memory_bytes is {self.memory_bytes}; the interpreter alone needs 64 MiB")

    def resources(self) -> dict[str, int]:
        """Name and value of each RLIMIT, soft and hard alike."""
        return {
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_CORE": 0,
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_SIGPENDING": 64,
        }
