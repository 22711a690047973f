"""All tests, in two processes at once: what `make test` runs.

What is not named here runs in the second process, so that nothing is left out. Each writes when it is done; one that
fails makes the whole fail. `pytest` alone runs the same tests one after the other.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

TESTS = Path(__file__).parent
FIRST = {"acceptance", "cli", "core", "crash", "docs", "engines", "hub", "models"}


def halves() -> tuple[list[str], list[str]]:
    """The paths of both."""
    found = sorted(path for path in TESTS.iterdir() if path.is_dir() or path.name.startswith("test_"))
    names = [path.relative_to(TESTS.parent).as_posix() for path in found if path.name != "__pycache__"]
    first = [name for name in names if name.removeprefix("tests/") in FIRST]
    return first, [name for name in names if name not in first]


def main() -> int:
    with tempfile.TemporaryFile() as one, tempfile.TemporaryFile() as other:
        outputs = (one, other)
        running = [begun(paths, output) for paths, output in zip(halves(), outputs, strict=True)]
        codes = [process.wait() for process in running]
        for output in outputs:
            output.seek(0)
            sys.stdout.write(output.read().decode(errors="replace"))
    return max(codes, key=abs)


def begun(paths: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """The tests at these paths, under way."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths]
    return subprocess.Popen(command, stdout=output, stderr=output)


if __name__ == "__main__":
    sys.exit(main())
