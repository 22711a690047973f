"""After hard use a hub holds no more files, tasks or memory than before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash.soak import Soak, soak

ROUNDS = 56
SECONDS = 180.0 if os.environ.get("ANTIPHON_PROOF") == "1" else 0.0
"""A run of the proof lasts so long at least; an ordinary one is measured by its rounds, on a fast or a slow machine."""
ROOM = 3 * 1024 * 1024
"""What caches of bounded size may differ by."""


@pytest.mark.proof
async def test_everything_is_given_back(tmp_path: Path) -> None:
    found: Soak = await soak(tmp_path, rounds=ROUNDS, seconds=SECONDS)
    assert found.envelopes > 3000
    assert found.after.files == found.before.files
    assert found.after.tasks == found.before.tasks
    assert found.growth < ROOM
    assert found.after_close.tasks < found.before.tasks
    assert found.after_close.files < found.before.files
