"""Every planted fault is found by the test that is named for it, and by nothing but its failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.planted.faults import FAULTS
from tests.planted.plugin import NAME

ROOT = Path(__file__).resolve().parents[2]
TESTS_FAILED = 1


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "tests.planted.plugin"]
    environment = {**os.environ, NAME: name}
    run = subprocess.run(
        [*command, FAULTS[name].found_by], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == TESTS_FAILED, run.stdout + run.stderr
    assert " failed" in run.stdout.splitlines()[-1], run.stdout
