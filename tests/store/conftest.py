"""A database file of a test's own, and a look into it from beside the store."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from antiphon.store.sqlite import SqliteStore

Tamper = Callable[..., None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "team.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(path)
    yield opened
    await opened.close()


@pytest.fixture
def tamper(path: Path) -> Tamper:
    """Change the file as no store would."""

    def change(sql: str, *values: object) -> None:
        connection = sqlite3.connect(path)
        with connection:
            connection.execute(sql, values)
        connection.close()

    return change
