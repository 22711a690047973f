"""The store that a URL names. A URL that names none is refused; no other store is opened instead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from antiphon.core.errors import BadUrl, StoreRefused
from antiphon.core.text import describe
from antiphon.store.protocol import Store, SystemTimeSource, TimeSource

if TYPE_CHECKING:
    from antiphon.store.sqlite import StoreOptions

STORE_URL_ADVICE = 'a store is "memory:", "sqlite:///relative/path.db" or "sqlite:////absolute/path.db"'


async def open_store(
    url: str, *, tenant: str = "default", clock: TimeSource | None = None, read_only: bool = False
) -> Store:
    """Open the store that a URL names."""
    options: StoreOptions = {"tenant": tenant, "clock": clock or SystemTimeSource(), "read_only": read_only}
    return await _OPENERS[_scheme_of(url)](url, options)


def sqlite_path_of(url: str) -> str | None:
    """The path of the SQLite file that a URL names; None for a store in memory."""
    if _scheme_of(url) == "memory":
        return None
    path = url.removeprefix("sqlite:///")
    if not path.strip("/") or path.endswith("/") or path.startswith(":"):
        raise BadUrl(f"{url!r} names no file; {STORE_URL_ADVICE}")
    if any(mark in path for mark in "\0?#"):
        raise BadUrl(f"{url!r} has more than a path in it; options, fragments and NUL characters mean nothing here")
    return path


def _scheme_of(url: str) -> str:
    if not isinstance(url, str):
        raise BadUrl(f"{describe(url)} is no URL; {STORE_URL_ADVICE}")
    if url.startswith(("postgresql:", "postgres:")):
        raise StoreRefused(f"this version has no PostgreSQL store; {STORE_URL_ADVICE}")
    scheme = url.partition(":")[0]
    if scheme not in _OPENERS or not (url == "memory:" or url.startswith("sqlite:///")):
        raise BadUrl(f"{url!r} names no store; {STORE_URL_ADVICE}")
    return scheme


async def _open_memory(_: str, options: StoreOptions) -> Store:
    from antiphon.store.memory_store import MemoryStore

    return MemoryStore(options["tenant"], options["clock"])


async def _open_sqlite(url: str, options: StoreOptions) -> Store:
    from antiphon.store.sqlite import SqliteStore

    return await SqliteStore.open(sqlite_path_of(url) or "", **options)


_OPENERS: Mapping[str, Callable[[str, StoreOptions], Awaitable[Store]]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
}
