"""The webhook transport: a reply is a signed POST to a URL, and a message is a signed POST to this hub's server.

Rule 1: a call of `send` makes one attempt. The hub decides when to try again.
Rule 2: a 2xx status is a delivery, even if the rest of the response is lost. 408, 425, 429, 5xx and errors of the
        network may pass; every other status refuses the reply for good, redirects too: they are not followed.
Rule 3: the connection goes to an address that was checked (see `addresses`), without a second resolution and without a
        proxy. The certificate is checked for the name in the URL.
Rule 4: of the URL only the host is in errors: its path may be a secret.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import TYPE_CHECKING

from antiphon.core.codec import to_json
from antiphon.core.envelope import Instant
from antiphon.core.errors import TransportRefused, TransportUnavailable, UsageError
from antiphon.core.text import describe
from antiphon.core.transport import InboundMessage, OutboundReply
from antiphon.hub.known_secrets import KNOWN_SECRETS, redact_loggers, redact_text
from antiphon.transports.addresses import check_addresses, host_objection, resolve_host
from antiphon.transports.signed_messages import SignedInbound, signed_headers
from antiphon.transports.transport_settings import check_shared_secret, check_timeout

if TYPE_CHECKING:
    import ssl

    from httpx2 import URL, AsyncClient, Response

redact_loggers(["httpx2"])  # it logs URLs

PASSING_STATUSES = frozenset({408, 425, 429})
"""Besides 5xx, the statuses of what may pass."""
MAX_TRIED_ADDRESSES = 4
MAX_RETRY_SECONDS = 86_400.0
URL_ADVICE = "give an address such as https://example.com/replies"


class WebhookTransport:
    """Sends replies to a URL, and reads the messages that its program sends back, both signed with one secret."""

    def __init__(
        self,
        url: str,
        *,
        secret: str,
        allow_private: bool = False,
        timeout: float = 10.0,
        max_response_bytes: int = 65_536,
    ) -> None:
        self._url, self._allow_private = _parse_webhook_url(url, allow_private=allow_private), allow_private
        self._host = self._url.raw_host.decode("ascii")
        self._secret = check_shared_secret(secret)
        self._timeout, self._max_response_bytes = check_timeout(timeout), max_response_bytes
        if isinstance(max_response_bytes, bool) or not isinstance(max_response_bytes, int) or max_response_bytes < 0:
            raise UsageError(f"max_response_bytes is {describe(max_response_bytes)}; give a number of bytes")
        self._trust: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"WebhookTransport({self._label!r})"

    @property
    def _label(self) -> str:
        """The address without path and query."""
        return f"{self._url.scheme}://{self._url.netloc.decode('ascii')}"

    async def send(self, reply: OutboundReply) -> None:
        """Deliver a reply, or raise `TransportRefused` or `TransportUnavailable`."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout_at(deadline):
                    response = await self._open_response(reply, stack)
            except TimeoutError as error:
                raise TransportUnavailable(f"{self._label} did not answer within {self._timeout:g} seconds") from error
            self._check_response(response, await self._read_beginning(response, deadline))

    def read_inbound(self, headers: Mapping[str, str], body: bytes, now: Instant) -> InboundMessage:
        """The message of a signed request; `InboundRefused` if its signature, its time or its body is wrong."""
        return SignedInbound(self._secret).read_inbound(headers, body, now)

    async def _open_response(self, reply: OutboundReply, stack: AsyncExitStack) -> Response:
        import httpx2

        port = self._url.port or {"http": 80, "https": 443}[self._url.scheme]
        addresses = await resolve_host(self._host, port)
        check_addresses(self._host, addresses, allow_private=self._allow_private)
        tried = addresses[:MAX_TRIED_ADDRESSES]
        client = await stack.enter_async_context(await self._make_client(self._timeout / max(1, len(tried))))
        body = _webhook_body(reply)
        headers = {
            **{"host": self._url.netloc.decode("ascii"), "content-type": "application/json"},
            **{"accept-encoding": "identity", "user-agent": "antiphon"},
            **signed_headers(self._secret, message_id=reply.reply_id, timestamp=int(time.time()), body=body),
        }
        failure: Exception | None = None
        for address in tried:
            place, name = self._url.copy_with(host=str(address)), {"sni_hostname": self._host.rstrip(".")}
            sending = client.stream("POST", place, content=body, headers=headers, extensions=name)
            try:
                return await stack.enter_async_context(sending)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:  # nothing was sent: try the next one
                failure = error
            except httpx2.HTTPError as error:
                raise TransportUnavailable(f"{self._label} did not answer: {_error_words(error)}") from error
        raise TransportUnavailable(f"{self._label} cannot be reached: {_error_words(failure)}") from failure

    async def _make_client(self, connect_seconds: float) -> AsyncClient:
        """A client for one attempt. It has no proxy, which would resolve the name again."""
        import httpx2

        if self._trust is None and self._url.scheme == "https":
            self._trust = await asyncio.to_thread(httpx2.create_ssl_context)
        patience = httpx2.Timeout(None, connect=connect_seconds)
        verify = self._trust or False  # without TLS there is nothing to verify
        return httpx2.AsyncClient(verify=verify, trust_env=False, follow_redirects=False, timeout=patience)

    async def _read_beginning(self, response: Response, deadline: float) -> bytes:
        """The body of a response, as far as it arrives in time and is not too large."""
        import httpx2

        said = bytearray()
        with suppress(TimeoutError, httpx2.HTTPError):
            async with asyncio.timeout_at(deadline):
                await _read_into(said, response, most=self._max_response_bytes)
        return bytes(said[: self._max_response_bytes])

    def _check_response(self, response: Response, body: bytes) -> None:
        status = response.status_code
        if 200 <= status < 300:
            return
        if 300 <= status < 400:
            raise TransportRefused(f"{self._label} answered with a redirect ({status}), which is not followed")
        detail = describe(redact_text(" ".join(body.decode("utf-8", "replace").split()))) if body else ""
        said = f"{self._label} answered {status}" + (f": {detail}" if detail else "")
        if status in PASSING_STATUSES or status >= 500:
            raise TransportUnavailable(said, retry_after=_retry_seconds(response.headers.get("retry-after")))
        raise TransportRefused(said)


async def _read_into(said: bytearray, response: Response, *, most: int) -> None:
    """Read a body chunk by chunk, so that what arrived is kept if the rest does not."""
    async for chunk in response.aiter_raw():
        said += chunk
        if len(said) > most:
            return


def _parse_webhook_url(url: str, *, allow_private: bool) -> URL:
    """The URL; `UsageError`, without the path, if nothing may be sent to it."""
    import httpx2

    try:
        parsed = httpx2.URL(url)
        host, port = parsed.raw_host.decode("ascii"), parsed.port
        host.encode("idna")
    except (httpx2.InvalidURL, TypeError, ValueError) as error:
        raise UsageError(f"the URL of a webhook cannot be read; {URL_ADVICE}") from error
    if parsed.scheme not in ("http", "https") or not host or "%" in host or port == 0 or (port or 1) >= 65_536:
        raise UsageError(f"the URL of a webhook has the scheme {parsed.scheme!r} and the host {host!r}; {URL_ADVICE}")
    if parsed.userinfo:
        raise UsageError(f"the URL of a webhook has a name or a password in it; replies are signed: {URL_ADVICE}")
    if parsed.scheme == "http" and not allow_private:
        raise UsageError(f"a webhook at {host!r} is not encrypted; give an https URL, or allow_private=True")
    objection = host_objection(host, allow_private=allow_private)
    if objection:
        raise UsageError(f"nothing is sent to {host!r}: it {objection}")
    KNOWN_SECRETS.know_url(url)
    return parsed.copy_with(fragment=None)


def _webhook_body(reply: OutboundReply) -> bytes:
    return to_json(
        {
            "id": reply.reply_id,
            "channel_id": reply.channel_id,
            "transport": reply.transport,
            "recipient": reply.recipient,
            "text": reply.text,
            "sender": reply.sender_id,
            "answers": reply.answers,
        }
    )


def _error_words(error: Exception | None) -> str:
    return redact_text(str(error) or type(error).__name__)


def _retry_seconds(header: str | None) -> float | None:
    """The seconds before a retry; None if the header does not say, or is invalid."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError, TypeError):
            return None
        seconds = max(0.0, seconds)
    return min(seconds, MAX_RETRY_SECONDS) if isfinite(seconds) and seconds >= 0 else None
