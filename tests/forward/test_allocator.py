"""Freed memory stays with the process where the C library can be told so."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from phloem.forward.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_tensor_in_the_place_of_a_freed_one_costs_no_page_faults() -> None:
    def faults(mode: str) -> int:
        done = subprocess.run([sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults("plain") > 1000 > 10 * faults("keep")
