"""The system calls that sandboxed code must do without, as a filter for bubblewrap's `--seccomp`.

libseccomp (a C library; Debian package libseccomp2, which apt itself needs) knows every architecture's numbers and
writes the filter; three of its functions are enough.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import socket

__all__ = ["LibraryMissing", "filter_program"]

MEMORY_OUTSIDE_LIMITS = "memfd_create memfd_secret shmget shmat shmctl msgget msgsnd semget semop mq_open"
"""Memory that no RLIMIT counts."""
NEW_NAMESPACES = "unshare setns mount umount2 pivot_root chroot open_tree move_mount fsopen fsmount mount_setattr"
OTHER_PROCESSES = "ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp"
KERNEL_SURFACE = (
    "bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register keyctl add_key request_key"
    " kexec_load kexec_file_load init_module finit_module delete_module open_by_handle_at name_to_handle_at"
    " fanotify_init personality quotactl acct swapon swapoff reboot syslog vhangup modify_ldt lookup_dcookie"
)
DENIED = f"{MEMORY_OUTSIDE_LIMITS} {NEW_NAMESPACES} {OTHER_PROCESSES} {KERNEL_SURFACE}".split()

_ALLOW = 0x7FFF0000
_UNKNOWN = -1  # __NR_SCMP_ERROR
_NOT_EQUAL, _MASKED_EQUAL = 1, 7
_NAMESPACE_FLAGS = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)  # CLONE_NEW*


class LibraryMissing(OSError):
    """libseccomp cannot be loaded."""


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


@functools.cache
def filter_program() -> bytes:
    """The filter as BPF instructions for this machine. Raises LibraryMissing.

    Denied calls fail with EPERM. Of sockets only AF_UNIX remains: a network namespace does not cover them all (vsock
    reaches a virtual machine's host). `clone3` hides its flags in memory where a filter cannot look, so it does not
    exist here (ENOSYS) and the C library falls back to `clone`, whose namespace flags are denied.
    """
    library = _load()
    context = library.seccomp_init(_ALLOW)
    if not context:
        raise MemoryError("libseccomp could not start a filter")
    try:
        for name in DENIED:
            _deny(library, context, name, errno.EPERM)
        _deny(library, context, "clone3", errno.ENOSYS)
        for flag in _NAMESPACE_FLAGS:
            _deny(library, context, "clone", errno.EPERM, _Comparison(0, _MASKED_EQUAL, flag, flag))
        for name in ("socket", "socketpair"):
            _deny(library, context, name, errno.EPERM, _Comparison(0, _NOT_EQUAL, socket.AF_UNIX, 0))
        file = os.memfd_create("seccomp")
        try:
            _check(library.seccomp_export_bpf(context, file), "seccomp_export_bpf")
            return os.pread(file, os.fstat(file).st_size, 0)
        finally:
            os.close(file)
    finally:
        library.seccomp_release(context)


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError as error:
        raise LibraryMissing(str(error)) from None
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = (ctypes.c_uint32,)
    library.seccomp_release.argtypes = (ctypes.c_void_p,)
    library.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Comparison),
    )  # fmt: skip
    library.seccomp_export_bpf.argtypes = (ctypes.c_void_p, ctypes.c_int)
    return library


def _deny(library: ctypes.CDLL, context: int, name: str, error: int, *when: _Comparison) -> None:
    """Adds a rule; a call that this architecture or an older libseccomp does not know has nothing to deny."""
    number = library.seccomp_syscall_resolve_name(name.encode())
    if number == _UNKNOWN:
        return
    action = 0x00050000 | error
    rules = (_Comparison * len(when))(*when)
    _check(library.seccomp_rule_add_array(context, action, number, len(when), rules), f"a rule for {name}")


def _check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(-result, f"libseccomp: {what}: {os.strerror(-result)}")
