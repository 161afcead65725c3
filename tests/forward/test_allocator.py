"""Freed memory stays with the process where the C library can be told so."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from phloem.forward.allocator import keep_freed_memory

def faults():
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults(), keep_freed_memory(), faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_tensor_in_the_place_of_a_freed_one_costs_no_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    before, kept, after = done.stdout.split()
    assert kept == "True"
    assert int(before) > 1000 > 10 * int(after)
