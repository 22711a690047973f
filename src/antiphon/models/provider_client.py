"""What the models of all providers have in common: a request is sent once, and its answer read whole or as a stream.

Rule 1: a dialect encodes requests and decodes answers. It has no connection, no clock and no environment.
Rule 2: an answer is complete only if its end was received. One that is closed before that broke off.
Rule 3: every call of a turn has a unique id: the provider's, or one by position. Earlier calls of the turn, perhaps of
        another provider, are sent with ids that are plain, unique and always the same; a result has its call's id.
Rule 4: arguments are sent as an object. A call with invalid ones is sent with `{}`; its result says what was wrong.
Rule 5: a model is a value. Two with the same settings are equal, whichever connections they hold. Its `repr` does not
        hold the key.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import msgspec

from antiphon.agents.call_results import Call, Reply, Usage, read_blocks
from antiphon.agents.messages import Answered, Asked, Objected, Request, TurnExchange
from antiphon.agents.usage_bounds import TOOL_PROMPT_TOKENS, input_token_bound, output_token_bound
from antiphon.core.codec import Malformed
from antiphon.core.errors import UsageError
from antiphon.core.text import explain_decode_error
from antiphon.hub.known_secrets import KNOWN_SECRETS
from antiphon.models.prices import Price, cost_of, usual_price, worst_cost
from antiphon.models.provider_errors import (
    broken_off_error,
    error_in_answer,
    malformed_answer_error,
    redact_raised_errors,
)
from antiphon.models.provider_http import ClientPool, ProviderRequest, ProviderResponse, SseEvent, open_response
from antiphon.models.provider_settings import (
    Provider,
    ProviderAddress,
    ProviderEndpoint,
    ProviderOptions,
    check_model_name,
    describe_options,
    parse_options,
    request_options,
    user_headers_of,
    with_body_fields,
)

T = TypeVar("T")

OUTPUT_LIMIT_OPTIONS = ("max_completion_tokens", "max_tokens")
"""The options that limit how long an answer may be; the first that is given counts."""

TRUNCATED_JSON_ERROR = "Input data was truncated"
"""The decoder's message for JSON that ends early."""


class ProviderReportedError(Exception):
    """A provider reports an error in place of an answer."""

    def __init__(self, error: object) -> None:
        super().__init__("an error in place of an answer")
        self.error = error


class UnfinishedAnswer(Exception):
    """The answer is incomplete."""


class StreamedAnswer(Protocol):
    """A streamed answer, assembled event by event."""

    @property
    def done(self) -> bool:
        """Whether its end was received."""
        ...

    def read(self, event: SseEvent) -> str:
        """The text in this event. `Malformed` or `ProviderReportedError` if it cannot be used."""
        ...

    def reply(self) -> Reply:
        """The whole answer. `UnfinishedAnswer` if it is incomplete, `Malformed` if it is invalid."""
        ...


class ProviderDialect(Protocol):
    """A provider's protocol: how requests are encoded and answers decoded."""

    @property
    def path(self) -> str: ...

    @property
    def default_output_tokens(self) -> int | None:
        """How long an answer may be if nothing is said; None if the server decides."""
        ...

    def headers(self, key: str | None) -> dict[str, str]:
        """The headers that the provider needs."""
        ...

    def body(self, request: Request, *, stream: bool) -> dict[str, object]:
        """The body of a request."""
        ...

    def whole(self, body: bytes) -> Reply:
        """The reply in a body. `Malformed`, `ProviderReportedError` or `UnfinishedAnswer` if there is none."""
        ...

    def reading(self) -> StreamedAnswer:
        """A decoder for a streamed answer."""
        ...


class ModelKind(NamedTuple):
    """What distinguishes the models of one provider."""

    provider: Provider
    dialect: Callable[[str, Mapping[str, object]], ProviderDialect]
    options: type[ProviderOptions]


@dataclass(frozen=True, init=False, repr=False)
class HostedModel:
    """A model of a provider, or of a server that speaks its protocol."""

    provider: ClassVar[str] = ""
    _kind: ClassVar[ModelKind]
    name: str
    price: Price | None
    _endpoint: ProviderEndpoint = field(hash=False)
    _options: Mapping[str, object] = field(hash=False)
    _dialect: ProviderDialect = field(compare=False)
    _pool: ClientPool = field(compare=False)

    def _configure(self, name: str, given: ProviderOptions) -> None:
        options = parse_options(given, self._kind.options)
        url, key = given.get("base_url"), given.get("api_key")
        endpoint = ProviderEndpoint(self._kind.provider, url, key, plain_http=bool(options.get("plain_http")))
        values = {
            "name": check_model_name(name),
            "price": given.get("price"),
            "_endpoint": endpoint,
            "_options": options,
            "_dialect": self._kind.dialect(name, options),
            "_pool": ClientPool(),
        }
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)

    def __repr__(self) -> str:
        url = "" if self._endpoint.base_url is None else f", base_url={self._endpoint.base_url!r}"
        return f"{type(self).__name__}({self.name!r}{url}{describe_options(self._options)})"

    def check(self) -> None:
        """`UsageError` if there is no key, or no usable address."""
        self._endpoint.address()

    async def close(self) -> None:
        """Close the connections, at once or with the last call. A later call opens new ones."""
        await self._pool.close()

    async def __call__(self, request: Request) -> Reply:
        """The model's answer; a `ModelError` if there is none."""
        sending = self._provider_request(request, stream=False)
        with redact_raised_errors():
            async with open_response(sending, self._pool) as answer:
                reply = self._whole(await answer.whole(), sending.address)
            return await self._priced_reply(reply, request, sending.address)

    async def stream(self, request: Request) -> AsyncIterator[str | Reply]:
        """The answer's text as it arrives, then the whole answer."""
        sending = self._provider_request(request, stream=True)
        with redact_raised_errors():
            async with (
                open_response(sending, self._pool) as answer,
                aclosing(self._read_stream(answer, sending.address)) as heard,
            ):
                async for piece in heard:
                    yield piece if isinstance(piece, str) else await self._priced_reply(piece, request, sending.address)

    @property
    def max_output_tokens(self) -> int | None:
        """How long an answer may be, in tokens; None if that is not known."""
        given = with_body_fields(request_options(self._options), self._options)
        named = (given.get(name) for name in OUTPUT_LIMIT_OPTIONS)
        return next((most for most in named if isinstance(most, int)), self._dialect.default_output_tokens)

    async def most_usage(self, request: Request) -> Usage:
        """What an answer may use at most. The cost is None if the price is unknown, and 0 on this machine."""
        tokens = await input_token_bound(self, request) + (TOOL_PROMPT_TOKENS if request.specs else 0)
        usage = Usage(tokens, output_token_bound(self))
        return msgspec.structs.replace(usage, cost=await self._most_cost(usage))

    async def _most_cost(self, usage: Usage) -> int | None:
        if self.price is not None:
            return worst_cost(self.price, self.name, usage)
        try:
            address = self._endpoint.address()
        except UsageError:
            return 0  # nothing is sent
        if not address.is_home:
            return 0 if address.is_local else None
        return await asyncio.to_thread(worst_cost, partial(usual_price, address.provider.name), self.name, usage)

    def _provider_request(self, request: Request, *, stream: bool) -> ProviderRequest:
        address, own = self._endpoint.address(), user_headers_of(self._options)
        headers = {**self._dialect.headers(address.key), **own}
        KNOWN_SECRETS.know_settings(own)
        body = with_body_fields(self._dialect.body(request, stream=stream), self._options)
        return ProviderRequest(address, self._dialect.path, headers, body)

    async def _read_stream(
        self, answer: ProviderResponse, address: ProviderAddress
    ) -> AsyncGenerator[str | Reply, None]:
        if answer.is_whole:
            reply = self._whole(await answer.whole(), address)
            if reply.text:
                yield reply.text
            yield reply
            return
        reading = self._dialect.reading()
        async with aclosing(answer.events()) as batches:
            async for events in batches:
                with self._translate_faults(address):
                    pieces = [reading.read(event) for event in takewhile(lambda _: not reading.done, events)]
                for piece in filter(None, pieces):
                    yield piece
                if reading.done:
                    break
        if reading.done:
            await answer.finish()
        with self._translate_faults(address):
            reply = reading.reply()
        yield reply

    def _whole(self, body: bytes, address: ProviderAddress) -> Reply:
        with self._translate_faults(address):
            return self._dialect.whole(body)

    @contextmanager
    def _translate_faults(self, address: ProviderAddress) -> Iterator[None]:
        """Inside, what is wrong with an answer is raised as the `ModelError` that callers get."""
        try:
            yield
        except ProviderReportedError as error:
            raise error_in_answer(error.error, address, model=self.name) from error
        except UnfinishedAnswer as error:
            raise broken_off_error(address) from error
        except Malformed as error:
            raise malformed_answer_error(explain_decode_error(str(error)), address) from error

    async def _priced_reply(self, reply: Reply, request: Request, address: ProviderAddress) -> Reply:
        usage = msgspec.structs.replace(reply.usage, cost=await self._cost(reply.usage, address))
        return msgspec.structs.replace(reply, calls=with_unique_call_ids(reply.calls, request), usage=usage)

    async def _cost(self, usage: Usage, address: ProviderAddress) -> int | None:
        """The cost; None if it is unknown. A thread is used, because loading the usual prices takes a while."""
        if self.price is not None:
            return cost_of(self.price, self.name, usage)
        if not address.is_home:
            return None
        return await asyncio.to_thread(cost_of, partial(usual_price, address.provider.name), self.name, usage)


def with_unique_call_ids(calls: tuple[Call, ...], request: Request) -> tuple[Call, ...]:
    """The calls with ids that are unique in the turn."""
    earlier = [call for item in request.exchange if isinstance(item, Asked) for call in item.calls]
    taken = {call.call_id for call in earlier}
    return tuple(call_with_unique_id(call, taken, len(earlier) + place) for place, call in enumerate(calls, start=1))


def call_with_unique_id(call: Call, taken: set[str], place: int) -> Call:
    """The call with an id that is not taken yet, by its place if it has none; the id is added to those taken."""
    name = call.call_id if call.call_id and call.call_id not in taken else f"call_{place}"
    while name in taken:
        name += "_"
    taken.add(name)
    return call if name == call.call_id else msgspec.structs.replace(call, call_id=name)


def decode_answer(body: bytes, kind: type[T]) -> T:
    """A body as a value; `UnfinishedAnswer` if it ends early, `Malformed` if it is invalid."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        if str(error) == TRUNCATED_JSON_ERROR:
            raise UnfinishedAnswer from error
        raise Malformed("malformed", str(error)) from error


def decode_sse_data(event: SseEvent, kind: type[T]) -> T:
    """The data of an event as a value; `Malformed` if it is invalid."""
    try:
        return decode_answer(event.data, kind)
    except UnfinishedAnswer as error:
        raise Malformed("malformed", "an event ends in the middle") from error


def decode_blocks(blocks: Sequence[object]) -> tuple[str, tuple[Call, ...]]:
    """The text and the calls in blocks; `Malformed` if one is invalid."""
    try:
        return read_blocks(blocks)
    except TypeError as error:
        raise Malformed("malformed", str(error)) from error


PLAIN_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def with_plain_call_ids(exchange: TurnExchange) -> TurnExchange:
    """The exchange with call ids that are unique and plain."""
    taken: set[str] = set()
    waiting: list[tuple[Call, Call]] = []
    place = 0
    items: list[Asked | Answered | Objected] = []
    for item in exchange:
        match item:
            case Asked(calls=calls):
                named = tuple(
                    call_with_unique_id(_without_odd_id(call), taken, place + at)
                    for at, call in enumerate(calls, start=1)
                )
                place += len(calls)
                waiting = list(zip(calls, named, strict=True))
                items.append(msgspec.structs.replace(item, calls=named))
            case Answered(call=call):
                items.append(Answered(_renamed_call(call, waiting), item.text, item.failed))
            case _:
                items.append(item)
    return tuple(items)


def _without_odd_id(call: Call) -> Call:
    return call if PLAIN_CALL_ID.fullmatch(call.call_id) else Call(call.name, call.args)


def _renamed_call(call: Call, waiting: list[tuple[Call, Call]]) -> Call:
    """The call with its new id; the first without a result, if several are equal."""
    at = next((at for at, (before, _) in enumerate(waiting) if before == call), None)
    return call if at is None else waiting.pop(at)[1]


def arguments_text(raw: msgspec.Raw) -> str:
    """Arguments as text. A server sends them as a JSON string, as JSON itself, or not at all.

    Half a surrogate pair is no error here but a fault of its call, like any other text that is not JSON.
    """
    text = bytes(raw).decode("utf-8", "backslashreplace")
    value: object = json.loads(text) if text.startswith('"') else text
    return value if isinstance(value, str) and text != "null" else ""
