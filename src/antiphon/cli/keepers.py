"""Where `antiphon keys` finds the keys: in a store, or at the server that uses it.

Rule 1: a store is opened as a hub that runs no turns, and only to change something; a listing reads beside any hub.
Rule 2: what a server answers is shown only as far as it was understood. In the rest there may be a secret.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from antiphon.cli.options import file_outside, reading
from antiphon.cli.plain import printable
from antiphon.core.codec import Malformed, from_json, plain_data
from antiphon.core.errors import StoreRefused
from antiphon.core.hosts import is_loopback
from antiphon.hub.keys import SECRET, Key, KeyRing, keys_in
from antiphon.runtime.hub import Hub
from antiphon.runtime.keys import keys_of
from antiphon.server.announcing import server_of, token_at
from antiphon.server.tokens import TOKEN
from antiphon.store.ownership import checked_place, holder, resolved

T = TypeVar("T")

SECRET_VARIABLE = "ANTIPHON_KEY"
BY = "command line"
PATIENCE = 30.0
"""How many seconds a server is given to answer."""
ASKED = ("participant", "kind", "scopes", "expires_at", "label")
"""What a server is told of a key that is wished for."""


class Given(msgspec.Struct, frozen=True):
    """A new key as a server answers it."""

    secret: str
    key: Key


class Listed(msgspec.Struct, frozen=True):
    """All keys as a server answers them."""

    keys: list[Key]


class Complaint(msgspec.Struct, frozen=True):
    """What a server says is wrong."""

    reason: str
    message: str


class Refused(msgspec.Struct, frozen=True):
    """The answer of a server that does not do what it was asked."""

    error: Complaint


class Keeper(Protocol):
    """Where keys are kept."""

    def make(self, wished: Key) -> Given:
        """Make a key."""
        ...

    def listed(self) -> list[Key]:
        """All keys, oldest first."""
        ...

    def revoke(self, key_id: str) -> Key:
        """End a key."""
        ...


class AtStore:
    """Keys in a store, which is opened for as long as it takes."""

    def __init__(self, url: str, tenant: str) -> None:
        self._url, self._tenant = url, tenant
        self._path = file_outside(url)

    def make(self, wished: Key) -> Given:
        server = self._server()
        if server is not None:
            return server.make(wished)

        async def made() -> Given:
            async with self._ring() as ring:
                secret, key = await ring.make(
                    wished.participant,
                    kind=wished.kind,
                    scopes=wished.scopes,
                    expires_at=wished.expires_at,
                    label=wished.label,
                    by=BY,
                    at=wished.created_at,
                )
                return Given(secret, key)

        return asyncio.run(made())

    def listed(self) -> list[Key]:
        async def read() -> list[Key]:
            async with reading(self._url, self._tenant) as store:
                return await keys_in(store)

        return asyncio.run(read())

    def revoke(self, key_id: str) -> Key:
        server = self._server()
        if server is not None:
            return server.revoke(key_id)

        async def revoked() -> Key:
            async with self._ring() as ring:
                return await ring.revoke(key_id, by=BY)

        checked_place(self._path, read_only=True)  # a store that is not there is not made
        return asyncio.run(revoked())

    def _server(self) -> AtServer | None:
        """The server of this user that uses the store now: only it can change the keys."""
        found = server_of(str(resolved(self._path)), self._tenant)
        return None if found is None else AtServer(found.url)

    @asynccontextmanager
    async def _ring(self) -> AsyncIterator[KeyRing]:
        try:
            hub = await Hub.open(self._url, engine=None, tenant=self._tenant)
        except StoreRefused as error:
            raise in_use(self._path, error, what="change its keys", scope="operate") from error
        try:
            yield keys_of(hub)
        finally:
            await hub.close()


def in_use(place: str, error: StoreRefused, *, what: str, scope: str) -> StoreRefused:
    """The error, or what to do if it is that a hub has the store."""
    path = str(resolved(place))
    try:
        process = holder(path)
    except (OSError, ImportError):
        return error
    if process is None:
        return error
    return StoreRefused(
        f"{path} is in use by a hub (process {process}), and only that hub can {what}; if it is a server,"
        f" ask it: --server URL, with a key of the scope {scope} in {SECRET_VARIABLE}; or stop it first"
    )


class AtServer:
    """Keys that a running server keeps, asked over HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._local = is_loopback(urlsplit(url).hostname or "")

    def make(self, wished: Key) -> Given:
        wish = {name: value for name, value in plain_data(wished).items() if name in ASKED}
        return self.answered("POST", "/keys", Given, wish=wish)

    def listed(self) -> list[Key]:
        return self.answered("GET", "/keys", Listed).keys

    def revoke(self, key_id: str) -> Key:
        return self.answered("DELETE", f"/keys/{key_id}", Key)

    def answered(self, method: str, path: str, kind: type[T], *, wish: dict[str, object] | None = None) -> T:
        """What the server answers, as the type that it should be."""
        import httpx2

        headers = _headers(self._url)
        try:
            response = httpx2.request(
                method,
                self._url + path,
                headers=headers,
                json=wish,
                timeout=PATIENCE,
                trust_env=not self._local,  # no proxy reads what stays on this machine
            )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _failure(f"{self._url} cannot be asked ({str(error) or type(error).__name__})") from error
        if response.is_success:
            return self._read(response.content, kind, f"{method} {path}")
        try:
            refused = from_json(response.content, Refused)
        except Malformed as error:
            raise _failure(f"{self._url} answers {response.status_code}; is it a server of Antiphon?") from error
        missing = response.status_code == 401 and not headers
        how = f"; set {SECRET_VARIABLE} to a key that may do this" if missing else ""
        raise _failure(f"{refused.error.message}{how}")

    def _read(self, answer: bytes, kind: type[T], question: str) -> T:
        try:
            return from_json(answer, kind)
        except Malformed:
            said = f"{self._url} answers {question} with something else than a server of Antiphon does"
        raise _failure(said)  # the cause would show the answer, in which there may be a secret


def _headers(url: str) -> dict[str, str]:
    """What shows the key in the environment, or else the token of the server of this user on this machine."""
    secret = os.environ.get(SECRET_VARIABLE, "").strip()
    if secret and not SECRET.match(secret) and not TOKEN.match(secret):
        looks = "it looks like ak_…, as `keys make` shows it, or is the token at_… of a server without keys"
        raise click.UsageError(f"what {SECRET_VARIABLE} holds is no key; {looks}.")
    secret = secret or token_at(url) or ""
    return {"Authorization": f"Bearer {secret}"} if secret else {}


def _failure(said: str) -> click.ClickException:
    return click.ClickException(printable(said))
