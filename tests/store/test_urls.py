"""A URL names one store, or none; nothing is opened instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.core.errors import BadUrl, StoreRefused
from antiphon.store.memory_store import MemoryStore
from antiphon.store.sqlite import SqliteStore
from antiphon.store.urls import open_store
from antiphon.testing import ManualClock


async def test_memory() -> None:
    store = await open_store("memory:", tenant="t", clock=ManualClock())
    assert isinstance(store, MemoryStore)
    assert store.tenant == "t"


async def test_an_absolute_path(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/team.db", tenant="t", clock=ManualClock())
    assert isinstance(store, SqliteStore)
    assert store.tenant == "t"
    await store.close()
    assert (tmp_path / "team.db").exists()


async def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await (await open_store("sqlite:///team file.db")).close()
    assert (tmp_path / "team file.db").exists()


async def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    for name in ("100%.db", "a b.db", "%41.db", "ü.db"):
        await (await open_store(f"sqlite:///{tmp_path}/{name}")).close()
        assert (tmp_path / name).exists()


async def test_to_read_only(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="nothing to read"):
        await open_store(f"sqlite:///{tmp_path}/team.db", read_only=True)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory",
        "memory://",
        "memory:x",
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite:////",
        "sqlite://host/team.db",
        "sqlite:team.db",
        "sqlite:////tmp/",
        "sqlite:///team.db?mode=ro",
        "sqlite:///team.db#top",
        "sqlite:///a\0b.db",
        "mysql://host/db",
        "SQLITE:///team.db",
        "team.db",
    ],
)
async def test_what_names_no_store(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadUrl) as caught:
        await open_store(url)
    assert repr(url) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["postgresql://host/db", "postgres://host/db"])
async def test_a_store_that_this_version_has_not(url: str) -> None:
    with pytest.raises(StoreRefused, match="no PostgreSQL store"):
        await open_store(url)
