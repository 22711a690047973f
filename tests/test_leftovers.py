"""A run of tests that leaves a process behind fails, and the process is ended."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.leftovers import PATIENCE

ROOT = Path(__file__).parent.parent
LEAVING = """
    import subprocess, sys

    def test_leaving():
        child = subprocess.Popen([sys.executable, "-c", {program!r}], stdout=subprocess.PIPE)
        print("left", child.stdout.readline().decode().strip())
        child.returncode = 0  # nothing complains of it
"""
CHILD = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
GRANDCHILD = (
    "import subprocess, sys; "
    f"subprocess.Popen([sys.executable, '-c', {CHILD!r}], stdout=sys.stdout, start_new_session=True)"
)


def run(tmp_path: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of these tests with the check alone."""
    path = tmp_path / "test_it.py"
    path.write_text(dedent(text))
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "tests.support.leftovers"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), PATIENCE: "0.2"}
    return subprocess.run(
        [*command, *options, "--rootdir", str(tmp_path), str(path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("program", [CHILD, GRANDCHILD], ids=["child", "grandchild"])
def test_a_process_that_is_left_fails_the_run(tmp_path: Path, program: str) -> None:
    ended = run(tmp_path, LEAVING.format(program=program))
    number = next(line.split()[-1] for line in ended.stdout.splitlines() if "left " in line)
    assert f"A test has left the process {number} behind: {sys.executable} -c import os, time" in ended.stdout
    assert ended.returncode == 1
    status = Path(f"/proc/{number}/stat")
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_run_that_leaves_none_is_fine(tmp_path: Path) -> None:
    ended = run(tmp_path, "import subprocess\ndef test_it():\n    subprocess.run(['true'], check=True)\n")
    assert (ended.returncode, "has left" in ended.stdout) == (0, False), ended.stdout


def test_a_run_in_several_processes_fails_too(tmp_path: Path) -> None:
    ended = run(tmp_path, LEAVING.format(program=CHILD), "-n", "2")
    assert "A test has left the process " in ended.stdout
    assert ended.returncode == 1


def test_a_run_in_several_processes_that_leaves_none_is_fine(tmp_path: Path) -> None:
    ended = run(tmp_path, "def test_it():\n    pass\n", "-n", "2")
    assert (ended.returncode, "has left" in ended.stdout) == (0, False), ended.stdout
