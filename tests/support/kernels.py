"""What the kernel of this machine can restrict, and a program that hides Landlock."""

from __future__ import annotations

import ctypes
import os
import sys

import pytest

# Lets the system calls of Landlock fail as on a kernel without it, then becomes the program that it is given.
WITHOUT_LANDLOCK = """
import ctypes, os, struct, sys
arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[os.uname().machine]
lines = [(0x20, 0, 0, 4), (0x15, 0, 3, arch), (0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x00050000 | 38),
         (0x06, 0, 0, 0x7FFF0000)]
text = b"".join(struct.pack("HBBI", *line) for line in lines)
buffer = ctypes.create_string_buffer(text, len(text))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HxxxxxxP", len(lines), ctypes.addressof(buffer)), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def landlock_version() -> int:
    """Return the version of Landlock, read without the code under test; 0 if the system does not have it."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(444, None, 0, 1)))


LANDLOCK = landlock_version()


def require_landlock(version: int = 1) -> None:
    """Skip a test if the kernel does not have this version of Landlock; in CI, it must have Landlock."""
    if version > LANDLOCK:
        assert LANDLOCK or os.environ.get("CI") != "true", "the kernel has no Landlock"
        pytest.skip(f"the kernel has no Landlock ABI {version}")
