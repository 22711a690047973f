"""Models of all other providers, through pydantic-ai.

Rule 1: pydantic-ai is loaded when a model is named. A key is needed when it is registered or called.
Rule 2: nothing below retries. Retries are turned off where a vendor's client has such a setting. Those of Bedrock
        (see `AWS_MAX_ATTEMPTS`), Hugging Face and xAI have none, and an HTTP client or a chain of models that you built
        yourself keeps its own.
Rule 3: the connections are held by each request, and by the model until it is closed; the last of them closes them.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from antiphon.agents.call_results import NO_USAGE, Reply, Usage
from antiphon.agents.messages import Request
from antiphon.agents.usage_bounds import TOOL_PROMPT_TOKENS, input_token_bound, output_token_bound
from antiphon.core.errors import UsageError
from antiphon.core.text import describe
from antiphon.models.prices import Price, cost_of, load_usual_prices, usual_price, worst_cost

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings

    PydanticRequest = tuple[list[ModelMessage], ModelSettings, ModelRequestParameters]

EXAMPLE_MODEL_NAME = "mistral:mistral-large-latest"
BRIDGED_MODEL_ADVICE = f"give the name of one, such as {EXAMPLE_MODEL_NAME!r}, or a model of pydantic-ai"


class BridgedModel:
    """A model that pydantic-ai speaks to: one that you built with it, or one that is called `provider:name`.

    Options are its model settings, such as `temperature=0.2` or `openai_reasoning_effort="low"`. Without a `price`, an
    answer costs what the provider publishes, if `antiphon[prices]` knows that.
    """

    def __init__(self, model: Model[object] | str, *, price: Price | None = None, **options: object) -> None:
        if importlib.util.find_spec("pydantic_ai") is None:
            raise UsageError(f"{describe(model)} needs pip install 'antiphon[models]'")
        _check_model_settings(options)
        self._given, self._price, self._options = model, price, options
        self._built: Model[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which the model holds its connections; None if it does not."""
        self.provider, self.name = _split_model_name(model) if isinstance(model, str) else _name_of_model(model)

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
            load_usual_prices()

    async def close(self) -> None:
        """Close the connections, at once or with the last call. A later call opens new ones."""
        if self._loop is not None:
            self._loop = None
            await self._model().__aexit__(None, None, None)

    async def __call__(self, request: Request) -> Reply:
        """The answer to a request; `ModelError` if there is none."""
        from antiphon.models.bridge_messages import reply_of_response

        with self._translate_errors():
            async with self._open_model() as model:
                response = await model.request(*self._sent(request, model))
            return self._priced_reply(reply_of_response(response, self._called))

    async def stream(self, request: Request) -> AsyncIterator[str | Reply]:
        """The answer's text as it arrives, then the whole answer. A model that cannot stream sends it in one piece."""
        from antiphon.models.bridge_messages import can_stream, reply_of_response, streamed_text_of

        if not can_stream(self._model()):
            reply = await self(request)
            if reply.text:
                yield reply.text
            yield reply
            return
        async with self._open_stream(request) as response:
            async for event in response:
                if piece := streamed_text_of(event):
                    yield piece
            reply = self._priced_reply(reply_of_response(response.get(), self._called))
        yield reply

    @property
    def max_output_tokens(self) -> int | None:
        """How long an answer may be, in tokens; None if that is not known."""
        most = self._options.get("max_tokens")
        return most if isinstance(most, int) else None

    async def most_usage(self, request: Request) -> Usage:
        """What an answer may use at most. The cost is None if the price is unknown."""
        tokens = await input_token_bound(self, request) + (TOOL_PROMPT_TOKENS if request.specs else 0)
        usage = Usage(tokens, output_token_bound(self))
        price = self._price or partial(usual_price, self.provider)
        cost = await asyncio.to_thread(worst_cost, price, self.name, usage)
        return replace(usage, cost=cost)

    @asynccontextmanager
    async def _open_stream(self, request: Request) -> AsyncIterator[StreamedResponse]:
        with self._translate_errors():
            async with self._open_model() as model, model.request_stream(*self._sent(request, model)) as response:
                yield response

    @asynccontextmanager
    async def _open_model(self) -> AsyncIterator[Model[object]]:
        """The model, with its connections open."""
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
            self._built = _build_model(self._given, self._called)
        return self._built

    def _sent(self, request: Request, model: Model[object]) -> PydanticRequest:
        from antiphon.models.bridge_messages import pydantic_messages_of, request_parameters_of

        once = {} if "max_retries" in model.unsupported_settings else {"max_retries": 0}
        settings = cast("ModelSettings", {**self._options, **once})
        return pydantic_messages_of(request, self._called), settings, request_parameters_of(request, model)

    def _priced_reply(self, reply: Reply) -> Reply:
        usage = reply.usage
        price = self._price or partial(usual_price, self.provider)
        cost = None if usage == NO_USAGE else cost_of(price, self.name, usage)
        return reply if cost is None else replace(reply, usage=replace(usage, cost=cost))

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate errors of pydantic-ai to ours."""
        from antiphon.models.bridge_messages import model_failure_of

        try:
            yield
        except Exception as error:
            failure = model_failure_of(error, self._called)
            if failure is None:
                raise
            raise failure from error


def _split_model_name(name: str) -> tuple[str, str]:
    """The provider and its model; `UsageError` if the provider is unknown, or its package is not installed."""
    from pydantic_ai.providers import infer_provider_class

    provider, _, model = name.partition(":")
    if not provider or not model:
        raise UsageError(f"{describe(name)} names no model; write its provider before it, such as {EXAMPLE_MODEL_NAME}")
    try:
        infer_provider_class(provider)
    except ImportError as error:
        raise UsageError(f"{describe(name)} needs a package that is not installed: {error}") from error
    except ValueError as error:
        raise UsageError(f"no provider is called {describe(provider)}; {BRIDGED_MODEL_ADVICE}") from error
    return provider, model


def _name_of_model(model: Model[object]) -> tuple[str, str]:
    from pydantic_ai.models import Model

    given: object = model
    if not isinstance(given, Model):
        raise UsageError(f"{describe(given)} is no model; {BRIDGED_MODEL_ADVICE}")
    return given.system, given.model_name


def _build_model(given: Model[object] | str, called: str) -> Model[object]:
    """The pydantic-ai model. No request is made, so any error means that a setting or a package is missing."""
    from pydantic_ai.models import infer_model

    from antiphon.models.bridge_messages import pydantic_error_text

    try:
        return infer_model(given)
    except Exception as error:
        raise UsageError(f"{called} cannot be asked: {pydantic_error_text(error)}") from error


def _check_model_settings(options: Mapping[str, object]) -> None:
    """`UsageError` for an unknown option, which pydantic-ai would ignore."""
    from pydantic_ai.settings import ModelSettings

    if "max_retries" in options:
        raise UsageError("max_retries is no option here, where nothing is asked twice; leave it out")
    for name in options.keys() - ModelSettings.__annotations__.keys():
        vendor, _, setting = name.partition("_")
        if not setting or importlib.util.find_spec(f"pydantic_ai.models.{vendor}") is None:
            raise UsageError(f"a model has no option {describe(name)}; give settings such as temperature=0.2")
