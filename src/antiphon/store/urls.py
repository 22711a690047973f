"""From a store's URL to the store. A URL that names no store is refused; nothing else is opened instead."""

from __future__ import annotations

from antiphon.core.errors import BadUrl, StoreRefused
from antiphon.core.words import shown
from antiphon.store.now import SystemNow
from antiphon.store.protocol import Now, Store

KINDS = 'a store is "memory:", "sqlite:///relative/path.db" or "sqlite:////absolute/path.db"'

_SQLITE = "sqlite:///"


async def open_store(url: str, *, tenant: str = "default", clock: Now | None = None, read_only: bool = False) -> Store:
    """Open the store that a URL names."""
    path = file_of(url)
    if path is None:
        from antiphon.store.memory import MemoryStore

        return MemoryStore(tenant, clock)
    from antiphon.store.sqlite import SqliteStore

    return await SqliteStore.open(path, tenant=tenant, clock=clock or SystemNow(), read_only=read_only)


def file_of(url: str) -> str | None:
    """The path of the SQLite file that a URL names; None for a store in memory."""
    if not isinstance(url, str):
        raise BadUrl(f"{shown(url)} is no URL; {KINDS}")
    if url == "memory:":
        return None
    if url.startswith(("postgresql:", "postgres:")):
        raise StoreRefused(f"this version has no PostgreSQL store; {KINDS}")
    path = url.removeprefix(_SQLITE)
    if path == url:
        raise BadUrl(f"{url!r} names no store; {KINDS}")
    if not path.strip("/") or path.endswith("/") or path.startswith(":"):
        raise BadUrl(f"{url!r} names no file; {KINDS}")
    if any(mark in path for mark in "\0?#"):
        raise BadUrl(f"{url!r} has more than a path in it; options, fragments and NUL characters mean nothing here")
    return path
