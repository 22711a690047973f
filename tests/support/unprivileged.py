"""Python in a process for which the permissions of a file count, also where the tests run as the superuser."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Linux lets a process give up the capabilities by which a superuser passes over permissions (1 and 2).
GIVE_UP = """
import ctypes, os, sys
if os.geteuid() == 0:
    kernel = ctypes.CDLL(None, use_errno=True)
    version, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert kernel.capget(version, sets) == 0
    for each in range(3):
        sets[each] &= ~0b110
    assert kernel.capset(version, sets) == 0
"""
OPEN = """
import asyncio
from antiphon.core.errors import AntiphonError
from antiphon.store.sqlite import SqliteStore

async def used(path, read_only):
    try:
        store = await SqliteStore.open(path, read_only=read_only)
        print("head", await store.head("c"))
        await store.close()
    except AntiphonError as error:
        print(f"{type(error).__name__}: {error}")

asyncio.run(used(sys.argv[1], sys.argv[2] == "read"))
"""
COMMAND = """
from antiphon.cli import main
main()
"""

needs_permissions = pytest.mark.skipif(
    os.geteuid() == 0 and sys.platform != "linux", reason="a superuser passes over permissions here"
)


def unprivileged(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script; what it writes is text."""
    return subprocess.run(
        [sys.executable, "-c", GIVE_UP + script, *words],
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def opened(path: object, how: str) -> str:
    """What happens when a store is opened to "read" or to "write": the head of channel c, or the refusal."""
    done = unprivileged(OPEN, str(path), how)
    assert done.stderr == ""
    return done.stdout.strip()
