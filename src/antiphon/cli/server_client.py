"""How commands change what a hub keeps: through the server that runs it, or by opening the store themselves.

Rule 1: a store is opened as a hub that runs no turns, and only to change something; a listing reads beside any hub.
Rule 2: of a server's response only what could be decoded is shown. The rest may contain a secret.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import click

from antiphon._net import is_loopback
from antiphon.cli.store_options import StorePlace, store_file_path
from antiphon.cli.table_layout import escape_unprintable
from antiphon.core.codec import Malformed, from_json
from antiphon.core.errors import StoreRefused
from antiphon.runtime.hub import Hub
from antiphon.server.api_keys import SECRET_PATTERN
from antiphon.server.schemas import ApprovalList, ChannelList
from antiphon.server.server_token import TOKEN_PATTERN, find_token
from antiphon.store.sqlite_files import owner_process, prepare_database_path, resolve_path

T = TypeVar("T")

SECRET_VARIABLE = "ANTIPHON_KEY"
COMMAND_LINE_ACTOR = "command line"
SERVER_TIMEOUT_SECONDS = 30.0
PAGE_ROWS = 1000

PageType = TypeVar("PageType", ApprovalList, ChannelList)


class ServerClient:
    """Requests to a running server."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._local = is_loopback(urlsplit(url).hostname or "")

    def request(self, method: str, path: str, kind: type[T], *, body: Mapping[str, object] | None = None) -> T:
        """The response, decoded as this type."""
        import httpx2

        headers = _auth_headers(self._url)
        try:
            response = httpx2.request(
                method,
                self._url + path,
                headers=headers,
                json=body,
                timeout=SERVER_TIMEOUT_SECONDS,
                trust_env=not self._local,  # no proxy reads what stays on this machine
            )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _click_error(f"{self._url} cannot be asked ({str(error) or type(error).__name__})") from error
        if response.is_success:
            return self._decode(response.content, kind, f"{method} {path}")
        from antiphon.server.problems import Problem  # which loads a whole web framework

        try:
            refused = from_json(response.content, Problem)
        except Malformed as error:
            raise _click_error(f"{self._url} answers {response.status_code}; is it a server of Antiphon?") from error
        missing = response.status_code == 401 and not headers
        how = f"; set {SECRET_VARIABLE} to a key that may do this" if missing else ""
        raise _click_error(f"{refused.error.message}{how}")

    def pages(self, path: str, kind: type[PageType], **query: str) -> Iterator[PageType]:
        """Every page of a listing."""
        after: str | None = ""
        while after is not None:
            page = self.request("GET", f"{path}?{urlencode({**query, 'after': after, 'limit': PAGE_ROWS})}", kind)
            yield page
            after = page.next

    def _decode(self, answer: bytes, kind: type[T], question: str) -> T:
        try:
            return from_json(answer, kind)
        except Malformed:
            said = f"{self._url} answers {question} with something else than a server of Antiphon does"
        raise _click_error(said)  # outside of the handler: the cause would show the answer, perhaps with a secret


@asynccontextmanager
async def open_hub_to_change(place: StorePlace, *, what: str, scope: str, create: bool = False) -> AsyncIterator[Hub]:
    """A hub without an engine on the store; what to do instead, if another hub uses it."""
    path = place_file_path(place)
    if not create:
        prepare_database_path(path, read_only=True)  # refuses a store that does not exist
    try:
        hub = await Hub.open(place["store"] or "", engine=None, tenant=place["tenant"])
    except StoreRefused as error:
        raise _store_in_use_error(path, error, what=what, scope=scope) from error
    try:
        yield hub
    finally:
        await hub.close()


def place_file_path(place: StorePlace) -> str:
    """The path of the store's file."""
    assert place["store"], "without a server there is a store"
    return store_file_path(place["store"])


def _store_in_use_error(place: str, error: StoreRefused, *, what: str, scope: str) -> StoreRefused:
    """The error, or what to do if the reason is a hub that uses the store."""
    path = str(resolve_path(place))
    try:
        process = owner_process(path)
    except (OSError, ImportError):
        return error
    if process is None:
        return error
    return StoreRefused(
        f"{path} is in use by a hub (process {process}), and only that hub can {what}; if it is a server,"
        f" ask it: --server URL, with a key of the scope {scope} in {SECRET_VARIABLE}; or stop it first"
    )


def _auth_headers(url: str) -> dict[str, str]:
    """The header with the key of the environment, or else with the token of this user's server on this machine."""
    secret = os.environ.get(SECRET_VARIABLE, "").strip()
    if secret and not SECRET_PATTERN.match(secret) and not TOKEN_PATTERN.match(secret):
        looks = "it looks like ak_…, as `keys make` shows it, or is the token at_… of a server without keys"
        raise click.UsageError(f"what {SECRET_VARIABLE} holds is no key; {looks}.")
    secret = secret or find_token(url) or ""
    return {"Authorization": f"Bearer {secret}"} if secret else {}


def _click_error(said: str) -> click.ClickException:
    return click.ClickException(escape_unprintable(said))
