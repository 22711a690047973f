"""Models of every provider that we do not speak to ourselves, through pydantic-ai.

Rule 1: nothing of pydantic-ai is loaded before a model is named, and no key is needed before it is registered or asked.
Rule 2: nothing below asks twice. Retries are set to none for every vendor's client that takes such a setting.
        Those of Bedrock (see `AWS_MAX_ATTEMPTS`), Hugging Face and xAI do not, and an HTTP client or a chain of
        models that you built yourself does as you made it do.
Rule 3: every request holds on to the connections, and so does the model until it is closed: they are let go of as
        soon as both are done with them.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from antiphon.agents.messages import NO_USAGE, Reply, Request, Usage
from antiphon.core.errors import UsageError
from antiphon.core.words import shown
from antiphon.models.prices import Price, cost_of, usual_price, warm

if TYPE_CHECKING:
    from pydantic_ai.models import Model, StreamedResponse
    from pydantic_ai.settings import ModelSettings

EXAMPLE = "mistral:mistral-large-latest"
ADVICE = f"give the name of one, such as {EXAMPLE!r}, or a model of pydantic-ai"


def bridged(name: str) -> BridgedModel:
    """The model that is called `provider:name`; `UsageError` if no such provider is known."""
    return BridgedModel(name)


class BridgedModel:
    """A model that pydantic-ai speaks to: one that you built with it, or one that is called `provider:name`.

    Options are its model settings, such as `temperature=0.2` or `openai_reasoning_effort="low"`. Without a `price`, an
    answer costs what the provider publishes, if `antiphon[prices]` knows that.
    """

    def __init__(self, model: Model[object] | str, *, price: Price | None = None, **options: object) -> None:
        _check_installed(model)
        _check_options(options)
        self._given, self._price, self._options = model, price, options
        self._built: Model[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where the connections are held on to; None if they are not."""
        self.provider, self.name = _checked_name(model) if isinstance(model, str) else _read_name(model)

    def __repr__(self) -> str:
        return f"BridgedModel({self._given!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BridgedModel) and self._declared == other._declared

    def __hash__(self) -> int:
        return hash((self.provider, self.name))

    @property
    def _declared(self) -> tuple[object, ...]:
        return self._given, self._price, self._options

    @property
    def _called(self) -> str:
        return f"{self.provider}:{self.name}"

    def check(self) -> None:
        """`UsageError` if the provider's package or its key is missing."""
        self._model()
        if self._price is None:
            warm()

    async def close(self) -> None:
        """Let the connections go as soon as nobody is being answered. Asked again, the model opens new ones."""
        if self._loop is not None:
            self._loop = None
            await self._model().__aexit__(None, None, None)

    async def __call__(self, request: Request) -> Reply:
        """The answer to a request; `ModelError` if there is none."""
        from antiphon.models.bridge_messages import messages_of, parameters_of, reply_of

        with self._explained():
            async with self._held() as model:
                settings = self._settings(model)
                response = await model.request(
                    messages_of(request, self._called), settings, parameters_of(request, model)
                )
            return self._priced(reply_of(response, self._called))

    async def stream(self, request: Request) -> AsyncIterator[str | Reply]:
        """Pieces of text as they come, then the whole answer. A model that cannot stream says it in one piece."""
        from antiphon.models.bridge_messages import can_stream, piece_of, reply_of

        if not can_stream(self._model()):
            reply = await self(request)
            if reply.text:
                yield reply.text
            yield reply
            return
        async with self._listening(request) as response:
            async for event in response:
                if piece := piece_of(event):
                    yield piece
            reply = self._priced(reply_of(response.get(), self._called))
        yield reply

    @asynccontextmanager
    async def _listening(self, request: Request) -> AsyncIterator[StreamedResponse]:
        from antiphon.models.bridge_messages import messages_of, parameters_of

        with self._explained():
            async with self._held() as model:
                settings, parameters = self._settings(model), parameters_of(request, model)
                async with model.request_stream(messages_of(request, self._called), settings, parameters) as response:
                    yield response

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[Model[object]]:
        """The model, with its connections held on to."""
        model, loop = self._model(), asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop and not self._loop.is_running():
            with suppress(RuntimeError):  # connections end with their event loop, and cannot be closed on another
                await self.close()
        async with model:
            if self._loop is None:
                self._loop = loop
                await model.__aenter__()
            yield model

    def _model(self) -> Model[object]:
        if self._built is None:
            self._built = _built(self._given, self._called)
        return self._built

    def _settings(self, model: Model[object]) -> ModelSettings:
        once = {} if "max_retries" in model.unsupported_settings else {"max_retries": 0}
        return cast("ModelSettings", {**self._options, **once})

    def _priced(self, reply: Reply) -> Reply:
        usage = reply.usage
        cost = None if usage == NO_USAGE else self._cost(usage)
        return reply if cost is None else msgspec.structs.replace(reply, usage=_costing(usage, cost))

    def _cost(self, usage: Usage) -> int | None:
        return cost_of(self._price or partial(usual_price, self.provider), self.name, usage)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what pydantic-ai raises into our errors."""
        from antiphon.models.bridge_messages import failure_of

        try:
            yield
        except Exception as error:
            failure = failure_of(error, self._called)
            if failure is None:
                raise
            raise failure from error


def _check_installed(model: object) -> None:
    if importlib.util.find_spec("pydantic_ai") is None:
        raise UsageError(f"{shown(model)} needs pip install 'antiphon[models]'")


def _checked_name(name: str) -> tuple[str, str]:
    """The provider and its model; `UsageError` if nobody knows the provider, or what speaks to it is not installed."""
    from pydantic_ai.providers import infer_provider_class

    provider, _, model = name.partition(":")
    if not provider or not model:
        raise UsageError(f"{shown(name)} names no model; write its provider before it, such as {EXAMPLE}")
    try:
        infer_provider_class(provider)
    except ImportError as error:
        raise UsageError(f"{shown(name)} needs a package that is not installed: {error}") from error
    except ValueError as error:
        raise UsageError(f"no provider is called {shown(provider)}; {ADVICE}") from error
    return provider, model


def _read_name(model: Model[object]) -> tuple[str, str]:
    from pydantic_ai.models import Model

    given: object = model
    if not isinstance(given, Model):
        raise UsageError(f"{shown(given)} is no model; {ADVICE}")
    return given.system, given.model_name


def _built(given: Model[object] | str, called: str) -> Model[object]:
    """The model itself. Nothing is asked for that, so that whatever fails is something that is missing."""
    from pydantic_ai.models import infer_model

    from antiphon.models.bridge_messages import said_by

    try:
        return infer_model(given)
    except Exception as error:
        raise UsageError(f"{called} cannot be asked: {said_by(error)}") from error


def _check_options(options: Mapping[str, object]) -> None:
    """Pydantic-ai takes no notice of settings that it does not know."""
    from pydantic_ai.settings import ModelSettings

    if "max_retries" in options:
        raise UsageError("max_retries is no option here, where nothing is asked twice; leave it out")
    for name in options.keys() - ModelSettings.__annotations__.keys():
        vendor, _, setting = name.partition("_")
        if not setting or importlib.util.find_spec(f"pydantic_ai.models.{vendor}") is None:
            raise UsageError(f"a model has no option {shown(name)}; give settings such as temperature=0.2")


def _costing(usage: Usage, cost: int) -> Usage:
    return msgspec.structs.replace(usage, cost=cost)
