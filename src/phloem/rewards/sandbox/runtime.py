"""The Python that sandboxed code runs on: this interpreter and its standard library, without installed packages."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import shutil
import stat
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["INSIDE", "NOBODY", "Runtime", "runtime"]

NOBODY = 65534
"""The unprivileged user and group that bubblewrap and all inside it run as where the launcher is root."""
INSIDE = 1000
"""What user and group look like from inside, whoever the launcher is."""

_COPIES = Path("/var/cache/phloem")
_NOT_COPIED = ("site-packages", "test", "idlelib", "tkinter", "ensurepip", "turtledemo", "config-*", "*.opt-?.pyc")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Runtime:
    """What a sandbox sees of this machine, all of it read-only.

    `mounts` are (path outside, path inside), `links` (target, path inside). `hidden` directories are shown empty:
    installed packages may well hold the data sets that completions are tested on.
    """

    executable: str
    mounts: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]


@functools.cache
def runtime() -> Runtime:
    """This machine's runtime, found once.

    Where the launcher is root and its Python lies where no other user can read (`/root`), a copy of the interpreter and
    standard library is made once under /var/cache/phloem and shown at the original's place.

    Raises OSError: no Python in the usual layout, or no room for the copy.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    executable = Path(sys.base_prefix, "bin", version).resolve(strict=True)
    library = Path(sysconfig.get_path("stdlib")).resolve(strict=True)
    shared = [path for path in Path(sys.base_prefix, "lib").glob("libpython*.so*") if not path.is_symlink()]
    python = {path: path for path in (executable, library, *shared)}
    if os.geteuid() == 0 and not all(_readable_by_all(path) for path in (executable, library / "os.py", *shared)):
        python = _copy(executable, library, shared)
    found = {path: path for path in _system() if not path.is_symlink()} | python
    return Runtime(
        executable=str(executable),
        mounts=tuple((str(outside), str(inside)) for inside, outside in found.items()),
        links=tuple((os.readlink(path), str(path)) for path in _system() if path.is_symlink()),
        hidden=tuple(
            str(inside / packages.relative_to(outside))
            for inside, outside in found.items()
            for pattern in ("*-packages", "python3*/*-packages")
            for packages in sorted(outside.glob(pattern))
        ),
    )


def _system() -> list[Path]:
    """Where shared libraries and their loader are; links among these paths are kept as links.

    Debian keeps libraries in a folder of the architecture, and in /usr/lib beside it all sorts of programs.
    """
    architecture = sysconfig.get_config_var("MULTIARCH") or "none"
    paths: list[Path] = []
    for root in (Path("/usr/lib"), Path("/lib")):
        if not root.is_symlink() and (root / architecture).is_dir():
            paths += [root / architecture, *sorted(root.glob("ld-*.so*"))]
        else:
            paths.append(root)
    paths += [Path("/usr/lib64"), Path("/lib64"), Path("/etc/ld.so.cache")]
    return [path for path in paths if path.exists()]


def _readable_by_all(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_IROTH) and all(
        parent.stat().st_mode & stat.S_IXOTH for parent in path.parents
    )


def _copy(executable: Path, library: Path, shared: list[Path]) -> dict[Path, Path]:
    """Path inside -> path outside of a copy that everybody can read and only root can change."""
    info = executable.stat()
    key = hashlib.sha256(f"{executable} {library} {info.st_size} {info.st_mtime_ns}".encode()).hexdigest()[:16]
    target = _COPIES / f"{executable.name}-{key}"
    if not target.is_dir():
        _log.warning("%s is readable by root alone; copying Python for the code sandbox to %s", library, target)
        _COPIES.mkdir(parents=True, exist_ok=True)
        _COPIES.chmod(0o755)
        aside = Path(tempfile.mkdtemp(dir=_COPIES))
        try:
            shutil.copytree(library, aside / "stdlib", ignore=shutil.ignore_patterns(*_NOT_COPIED))
            for file in (executable, *shared):
                shutil.copy2(file, aside / file.name)
            for path in (aside, *aside.rglob("*")):
                if not path.is_symlink():
                    path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
            aside.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    for path in (_COPIES, target):
        if path.stat().st_uid != 0 or path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{path} can be written by others than root; remove it")
    return {library: target / "stdlib", **{file: target / file.name for file in (executable, *shared)}}
