"""How a provider's model is asked, whatever it speaks: once, and read as a whole or as it comes.

Rule 1: a dialect says what is sent and reads what comes back. It has no connection, no clock and no environment.
Rule 2: an answer is one only if its end was told. What ends in good order but too early broke off.
Rule 3: every call has an id that no other call of the turn has: the provider's, or one by position.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from antiphon.agents.messages import Asked, Call, Reply, Request, Usage
from antiphon.core.codec import Malformed
from antiphon.core.words import plainly
from antiphon.hub.redacting import KNOWN
from antiphon.models.endpoint import Address, Endpoint
from antiphon.models.faults import broken_off, discreet, malformed, of_error
from antiphon.models.pool import Pool
from antiphon.models.prices import Price, cost_of, usual_price
from antiphon.models.sse import Event
from antiphon.models.wire import Answer, Letter, sent

T = TypeVar("T")

TRUNCATED = "Input data was truncated"
"""What the decoder says of JSON that ends in the middle."""


class Told(Exception):
    """A provider tells of an error where an answer should be."""

    def __init__(self, error: object) -> None:
        super().__init__("an error in place of an answer")
        self.error = error


class Unfinished(Exception):
    """What came is no whole answer."""


class Reading(Protocol):
    """A streamed answer, as it is put together."""

    @property
    def done(self) -> bool:
        """Whether its end was told, and nothing will follow."""
        ...

    def read(self, event: Event) -> str:
        """The text that comes with this event. `Malformed` or `Told` if it cannot be used."""
        ...

    def reply(self) -> Reply:
        """All of it. `Unfinished` if that is not an answer yet, `Malformed` if it is none."""
        ...


class Dialect(Protocol):
    """What a provider understands, and how it answers."""

    @property
    def path(self) -> str: ...

    @property
    def extra(self) -> Mapping[str, str]:
        """Headers that the user wants to go with each request."""
        ...

    def headers(self, key: str | None) -> dict[str, str]:
        """Those that the provider wants."""
        ...

    def body(self, request: Request, *, stream: bool) -> dict[str, object]:
        """The request, in the provider's words."""
        ...

    def whole(self, body: bytes) -> Reply:
        """The reply that this body is. `Malformed`, `Told` or `Unfinished` if it is none."""
        ...

    def reading(self) -> Reading:
        """The beginning of a streamed answer."""
        ...


@dataclass(frozen=True, slots=True)
class Asking:
    """One model of one provider, ready to be asked."""

    name: str
    endpoint: Endpoint
    dialect: Dialect
    price: Price | None
    pool: Pool

    async def answer(self, request: Request) -> Reply:
        """Its answer."""
        letter = self._letter(request, stream=False)
        with discreet():
            async with sent(letter, self.pool) as answer:
                reply = self._whole(await answer.whole(), letter.address)
            return await self._finished(reply, request, letter.address)

    async def stream(self, request: Request) -> AsyncIterator[str | Reply]:
        """Its answer's text as it comes, then the answer."""
        letter = self._letter(request, stream=True)
        with discreet():
            async with sent(letter, self.pool) as answer, aclosing(self._heard(answer, letter.address)) as heard:
                async for piece in heard:
                    yield piece if isinstance(piece, str) else await self._finished(piece, request, letter.address)

    def _letter(self, request: Request, *, stream: bool) -> Letter:
        address = self.endpoint.address()
        dialect = self.dialect
        headers = {**dialect.headers(address.key), **dialect.extra}
        KNOWN.know_settings(dialect.extra)
        return Letter(address, dialect.path, headers, dialect.body(request, stream=stream))

    async def _heard(self, answer: Answer, address: Address) -> AsyncGenerator[str | Reply, None]:
        if answer.is_whole:
            reply = self._whole(await answer.whole(), address)
            if reply.text:
                yield reply.text
            yield reply
            return
        reading = self.dialect.reading()
        async with aclosing(answer.events()) as batches:
            async for events in batches:
                for piece in self._pieces(reading, events, address):
                    yield piece
                if reading.done:
                    break
        if reading.done:
            await answer.finish()
        try:
            yield reading.reply()
        except Exception as error:
            raise self._fault(error, address) from error

    def _pieces(self, reading: Reading, events: list[Event], address: Address) -> list[str]:
        pieces = []
        for event in events:
            if reading.done:
                break
            try:
                pieces.append(reading.read(event))
            except Exception as error:
                raise self._fault(error, address) from error
        return [piece for piece in pieces if piece]

    def _whole(self, body: bytes, address: Address) -> Reply:
        try:
            return self.dialect.whole(body)
        except Exception as error:
            raise self._fault(error, address) from error

    def _fault(self, error: Exception, address: Address) -> Exception:
        match error:
            case Told():
                return of_error(error.error, address, model=self.name)
            case Unfinished():
                return broken_off(address)
            case Malformed():
                return malformed(plainly(str(error)), address)
            case _:
                return error

    async def _finished(self, reply: Reply, request: Request, address: Address) -> Reply:
        usage = msgspec.structs.replace(reply.usage, cost=await self._cost(reply.usage, address))
        return msgspec.structs.replace(reply, calls=named(reply.calls, request), usage=usage)

    async def _cost(self, usage: Usage, address: Address) -> int | None:
        """What that cost; None if nobody knows. The usual prices are loaded on first use, which takes a while."""
        if self.price is not None:
            return cost_of(self.price, self.name, usage)
        if not address.is_home:
            return None
        return await asyncio.to_thread(cost_of, partial(usual_price, address.provider.name), self.name, usage)


def named(calls: tuple[Call, ...], request: Request) -> tuple[Call, ...]:
    """The calls with ids that tell them apart from each other and from all others of the turn."""
    earlier = [call for item in request.exchange if isinstance(item, Asked) for call in item.calls]
    taken = {call.call_id for call in earlier}
    return tuple(distinct(call, taken, len(earlier) + place) for place, call in enumerate(calls, start=1))


def distinct(call: Call, taken: set[str], place: int) -> Call:
    """The call with an id that is not taken yet, by its place if it has none; it is taken then."""
    name = call.call_id if call.call_id and call.call_id not in taken else f"call_{place}"
    while name in taken:
        name += "_"
    taken.add(name)
    return call if name == call.call_id else msgspec.structs.replace(call, call_id=name)


def decoded(body: bytes, kind: type[T]) -> T:
    """A whole body as a value; `Unfinished` if it ends in the middle, `Malformed` if it has another shape."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        if str(error) == TRUNCATED:
            raise Unfinished from error
        raise Malformed("malformed", str(error)) from error


def decoded_event(event: Event, kind: type[T]) -> T:
    """The data of an event as a value; `Malformed` if it is none."""
    try:
        return decoded(event.data, kind)
    except Unfinished as error:
        raise Malformed("malformed", "an event ends in the middle") from error
