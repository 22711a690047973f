"""Every planted fault is found by the test that is named for it, and by nothing but its failure."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.planted.faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
TESTS_FAILED = 1

Run = Callable[[str], tuple[int, str]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs the test of a fault, in a process of its own."""
    command = [sys.executable, "-m", "tests.planted.runner"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runner:
        asked, answers = runner.stdin, runner.stdout
        assert asked is not None
        assert answers is not None

        def run_named(name: str) -> tuple[int, str]:
            print(name, file=asked, flush=True)
            code, said = json.loads(answers.readline())
            return code, said

        yield run_named


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, run: Run) -> None:
    code, said = run(name)
    assert code == TESTS_FAILED, said
    assert " failed" in said.splitlines()[-1], said
