"""Places for hubs: in memory, and in a file."""

from pathlib import Path

import pytest

from antiphon.testing import ManualClock
from tests.support.hub_places import InMemory, OnDisk, Place


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Place:
    return InMemory(clock) if request.param == "memory" else OnDisk(tmp_path)
