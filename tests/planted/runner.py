"""Runs tests in which a fault is planted, each in a process forked from this one, which has loaded what they need.

Reads names of faults from its standard input, and answers each with a line of JSON: the exit code, and the output.
"""

import contextlib
import json
import os
import signal
import sys

import pytest

from tests.planted.faults import FAULTS

LONGEST_SECONDS = 120
OPTIONS = ["-q", "-x", "-p", "no:cacheprovider"]


def exit_code_of(name: str) -> int:
    """Plant the fault in this process, and run the test that must find it."""
    FAULTS[name].plant(pytest.MonkeyPatch())
    return int(pytest.main([*OPTIONS, FAULTS[name].found_by]))


def run_in_child(name: str) -> tuple[int, str]:
    """The exit code and the output of the test of a fault."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        for stream in (1, 2):
            os.dup2(writing, stream)
        signal.alarm(LONGEST_SECONDS)
        code = 70
        with contextlib.suppress(BaseException):
            code = exit_code_of(name)
        sys.stdout.flush()
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8", errors="replace") as output:
        said = output.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run_in_child(line.strip())), flush=True)
