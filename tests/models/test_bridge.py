"""Models of other providers through pydantic-ai, in its own words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from pydantic_ai.exceptions import ModelConnectionError, ModelHTTPError, ModelRateLimitError, UnexpectedModelBehavior
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from antiphon import (
    Agent,
    BridgedModel,
    Hub,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    ReplyMalformed,
    UsageError,
)
from antiphon.agents.call_results import Call, Reply, Usage
from antiphon.agents.messages import Answered, Asked, ChecksConfig, Closes, Objected, Request, ToolSpec
from antiphon.core.views import Message
from antiphon.models.bridge_messages import model_failure_of, pydantic_messages_of

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LOOK = ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}})
ASK = Request("Be kind.", [Message("user", "Hello!")], specs=(LOOK,))
FAR = Call("look", {"at": "far"}, "c1")
NEAR = Call("look", {"at": "near"}, "c2")


async def whole(model: BridgedModel, request: Request = ASK) -> tuple[list[str], Reply]:
    """What a stream says: its pieces, and the answer at its end."""
    *pieces, reply = [piece async for piece in model.stream(request)]
    assert isinstance(reply, Reply)
    return [str(piece) for piece in pieces], reply


# In pydantic-ai's own words


def given(*parts: object, **fields: object) -> BridgedModel:
    """A model that answers with these parts."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=list(parts), **fields)  # type: ignore[arg-type]

    return BridgedModel(FunctionModel(answer, model_name="given"))


def raising(error: Exception) -> BridgedModel:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise error

    return BridgedModel(FunctionModel(answer, model_name="given"))


def untimed(messages: Sequence[ModelMessage]) -> list[tuple[str, list[tuple[object, ...]]]]:
    """Messages without the times that they carry."""
    return [(message.kind, [_untimed(part) for part in message.parts]) for message in messages]


def _untimed(part: object) -> tuple[object, ...]:
    match part:
        case SystemPromptPart(content=text) | UserPromptPart(content=text) | TextPart(content=text):
            return type(part).__name__, text
        case ToolCallPart(tool_name=name, args=args, tool_call_id=call_id):
            return "ToolCallPart", name, args, call_id
        case ToolReturnPart(tool_name=name, content=content, tool_call_id=call_id, outcome=outcome):
            return "ToolReturnPart", name, content, call_id, outcome
        case _:
            return (part,)


def test_a_request_is_sent_as_it_is() -> None:
    history = [
        Message("user", "Hi."),
        Message("user", "There?"),
        Message("assistant", "Yes."),
        Message("user", "Look!"),
    ]
    exchange = (
        Asked("Wait.", (FAR, NEAR)),
        Answered(FAR, "a hill"),
        Answered(NEAR, "no light", failed=True),
        Asked("", (FAR,)),
        Answered(FAR, "a hill"),
        Asked("Paris", ()),
        Objected("It should be JSON."),
    )
    assert untimed(pydantic_messages_of(Request("Be kind.", history, exchange))) == [
        ("request", [("SystemPromptPart", "Be kind."), ("UserPromptPart", "Hi."), ("UserPromptPart", "There?")]),
        ("response", [("TextPart", "Yes.")]),
        ("request", [("UserPromptPart", "Look!")]),
        (
            "response",
            [
                ("TextPart", "Wait."),
                ("ToolCallPart", "look", {"at": "far"}, "c1"),
                ("ToolCallPart", "look", {"at": "near"}, "c2"),
            ],
        ),
        (
            "request",
            [
                ("ToolReturnPart", "look", "a hill", "c1", "success"),
                ("ToolReturnPart", "look", "no light", "c2", "failed"),
            ],
        ),
        ("response", [("ToolCallPart", "look", {"at": "far"}, "call_3")]),
        ("request", [("ToolReturnPart", "look", "a hill", "call_3", "success")]),
        ("response", [("TextPart", "Paris")]),
        ("request", [("UserPromptPart", "It should be JSON.")]),
    ]
    assert untimed(pydantic_messages_of(Request("", [Message("user", "Hi.")]))) == [
        ("request", [("UserPromptPart", "Hi.")])
    ]


def test_calls_of_another_model_that_gave_no_ids_are_told_apart() -> None:
    twice = Call("look", {"at": "far"})
    exchange = (Asked("", (twice, twice)), Answered(twice, "a hill"), Answered(twice, "a light"))
    assert untimed(pydantic_messages_of(Request("", [], exchange))) == [
        ("response", [("ToolCallPart", "look", {"at": "far"}, f"call_{number}") for number in (1, 2)]),
        (
            "request",
            [
                ("ToolReturnPart", "look", "a hill", "call_1", "success"),
                ("ToolReturnPart", "look", "a light", "call_2", "success"),
            ],
        ),
    ]


@pytest.mark.parametrize(
    ("profile", "specs", "mode"),
    [
        (ModelProfile(supports_json_schema_output=True), (), "native"),
        (ModelProfile(supports_json_schema_output=True), (LOOK,), "native"),
        ({"supports_json_schema_output": True, "google_supports_tool_combination": False}, (LOOK,), "prompted"),
        ({"supports_json_schema_output": True, "google_supports_tool_combination": False}, (), "native"),
        (ModelProfile(supports_json_schema_output=False), (), "prompted"),
    ],
)
async def test_tools_options_and_the_shape_of_the_answer_are_told(
    profile: ModelProfile, specs: tuple[ToolSpec, ...], mode: str
) -> None:
    heard: list[AgentInfo] = []

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        heard.append(info)
        return ModelResponse(parts=[TextPart('{"city": "Paris"}')])

    model = BridgedModel(FunctionModel(answer, profile=profile), temperature=0.5)
    assert (await model(Request("", ASK.history, specs=specs, output=SCHEMA))).text == '{"city": "Paris"}'
    [info] = heard
    told = info.model_request_parameters
    assert [(tool.name, tool.description, tool.parameters_json_schema) for tool in info.function_tools] == [
        (spec.name, spec.description, spec.parameters) for spec in specs
    ]
    assert told.output_mode == mode
    assert told.output_object is not None
    assert told.output_object.json_schema == SCHEMA
    assert info.model_settings == {"temperature": 0.5, "max_retries": 0}


async def test_an_answer_is_a_reply() -> None:
    usage = RequestUsage(input_tokens=100, output_tokens=7, cache_read_tokens=80, cache_write_tokens=10)
    parts = [
        ThinkingPart("secret thoughts"),
        TextPart("Wait"),
        ToolCallPart("look", {"at": "far"}, "c1"),
        TextPart(" a bit."),
        ToolCallPart("look", '{"at": "near"}', "c2"),
        ToolCallPart("rest", None, "c3"),
    ]
    reply = await given(*parts, usage=usage)(ASK)
    assert reply == Reply("Wait a bit.", (FAR, NEAR, Call("rest", {}, "c3")), Usage(100, 7, 80, 10))
    assert (await given(TextPart("Par"), finish_reason="length")(ASK)).cut
    assert not (await given(TextPart("Paris"), finish_reason="stop")(ASK)).cut


@pytest.mark.parametrize("price", [lambda name, usage: 1 // 0, lambda name, usage: 0.5])
async def test_a_price_that_cannot_be_told_costs_no_answer(
    price: Callable[[str, Usage], int], caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("Hi.")], usage=RequestUsage(input_tokens=1, output_tokens=1))

    reply = await BridgedModel(FunctionModel(answer, model_name="given"), price=price)(ASK)
    assert (reply.text, reply.usage.cost) == ("Hi.", None)
    assert "the price of given c" in caplog.text


async def test_an_answer_without_counts_costs_nothing_that_is_known() -> None:
    model = given(TextPart("Hi."), usage=RequestUsage(unmeasured_requests=1))
    assert (await model(ASK)).usage == Usage()


@pytest.mark.parametrize(
    ("parts", "fields", "words"),
    [
        ([], {"finish_reason": "content_filter"}, ["there is no answer", "content_filter"]),
        ([TextPart("…")], {"state": "suspended"}, ["there is no answer", "suspended"]),
    ],
    ids=repr,
)
async def test_an_answer_that_cannot_be_used(parts: list[object], fields: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ReplyMalformed) as refused:
        await given(*parts, **fields)(ASK)
    assert [word for word in words if word not in str(refused.value)] == []


async def test_an_answer_that_broke_off() -> None:
    with pytest.raises(ModelUnavailable, match="broke off after 3 characters"):
        await given(TextPart("Par"), state="incomplete")(ASK)


async def test_a_stream_in_its_own_words() -> None:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[object]:
        yield {0: DeltaThinkingPart(content="secret thoughts")}
        yield "Wait"
        yield " a bit."
        yield {1: DeltaToolCall("look", '{"at"', tool_call_id="c1"), 2: DeltaToolCall("look", "{}", tool_call_id="c2")}
        yield {1: DeltaToolCall(json_args=': "far"}')}

    model = BridgedModel(FunctionModel(stream_function=answer, model_name="given"))  # type: ignore[arg-type]
    pieces, reply = await whole(model)
    assert pieces == ["Wait", " a bit."]
    assert (reply.text, reply.calls) == ("Wait a bit.", (FAR, Call("look", {}, "c2")))
    assert reply.usage.output_tokens > 0


async def test_a_model_that_cannot_stream_says_it_in_one_piece() -> None:
    class Mute(Model[object]):
        model_name, system = "mute", "nobody"

        async def request(
            self, messages: list[ModelMessage], settings: ModelSettings | None, parameters: ModelRequestParameters
        ) -> ModelResponse:
            return ModelResponse(parts=[TextPart("All at once.")])

    pieces, reply = await whole(BridgedModel(Mute()))
    assert (pieces, reply.text) == (["All at once."], "All at once.")


# What goes wrong


def by_status(status: int, **headers: str) -> ModelHTTPError:
    return ModelHTTPError(status, "given", {"message": "Not now."}, headers=headers)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        *[(by_status(status), ModelUnavailable) for status in (408, 409, 425, 429, 500, 502, 503, 504, 529)],
        *[(by_status(status), ModelRefused) for status in (400, 401, 402, 403, 404, 413, 422)],
        (ModelConnectionError("given", "Connection refused."), ModelUnavailable),
        (ModelRateLimitError("given", "Too fast.", retry_after=3.0), ModelUnavailable),
        (ConnectionResetError("gone"), ModelUnavailable),
        (UnexpectedModelBehavior("Nonsense."), ReplyMalformed),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value)[:30],
)
async def test_a_failure_says_whether_asking_again_may_help(error: Exception, failure: type[ModelError]) -> None:
    with pytest.raises(failure) as raised:
        await raising(error)(ASK)
    assert raised.value.__cause__ is error
    assert "function:given" in str(raised.value)
    assert getattr(raised.value, "status", None) == getattr(error, "status_code", None)
    assert getattr(raised.value, "retry_after", None) == getattr(error, "retry_after", None)


async def test_when_all_of_several_models_fail_the_failure_that_may_pass_is_told() -> None:
    async def refuse(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise by_status(404)

    async def later(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise by_status(503, **{"retry-after": "2"})

    with pytest.raises(ModelUnavailable) as raised:
        await BridgedModel(FallbackModel(FunctionModel(refuse), FunctionModel(later)))(ASK)
    assert (raised.value.status, raised.value.retry_after) == (503, 2.0)
    with pytest.raises(ModelRefused):
        await BridgedModel(FallbackModel(FunctionModel(refuse), FunctionModel(refuse)))(ASK)


async def test_what_is_not_known_is_raised_as_it_came() -> None:
    with pytest.raises(ZeroDivisionError):
        await raising(ZeroDivisionError())(ASK)
    assert model_failure_of(ZeroDivisionError(), "given") is None


# Names and keys


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nobody:gpt-9", ["no provider is called 'nobody'", "such as 'mistral:"]),
        ("gpt-9", ["'gpt-9' names no model", "provider before it"]),
        ("mistral:", ["'mistral:' names no model"]),
        (":large", ["':large' names no model"]),
        (7, ["7 is no model", "give the name of one"]),
        ("google:gemini-2.5-flash", ["needs a package that is not installed", "google-genai"]),
    ],
)
def test_a_name_that_cannot_be_used(name: object, words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        BridgedModel(name)  # type: ignore[arg-type]
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temprature": 1}, ["no option 'temprature'", "temperature=0.2"]),
        ({"max_token": 1}, ["no option 'max_token'"]),
        ({"max_retries": 3}, ["max_retries", "leave it out"]),
    ],
    ids=repr,
)
def test_an_option_that_would_not_be_noticed(options: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        BridgedModel(TestModel(), **options)  # type: ignore[arg-type]
    assert [word for word in words if word not in str(refused.value)] == []
    BridgedModel(TestModel(), openai_reasoning_effort="low", top_p=0.5)


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DEEPSEEK_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_key")
async def test_an_agent_is_declared_without_a_key_and_registered_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = BridgedModel("deepseek:deepseek-chat")
    assert (model.provider, model.name) == ("deepseek", "deepseek-chat")
    agent = Agent("ada", model=model)
    assert agent == Agent("ada", model=BridgedModel("deepseek:deepseek-chat"))
    assert agent == Agent("ada", model="deepseek:deepseek-chat")
    assert agent != Agent("ada", model=BridgedModel("deepseek:deepseek-reasoner"))
    assert agent != Agent("ada", model=BridgedModel("deepseek:deepseek-chat", temperature=1.0))
    assert isinstance(model, ChecksConfig)
    assert isinstance(model, Closes)
    for ask in (model(ASK), whole(model)):
        with pytest.raises(UsageError, match="deepseek:deepseek-chat cannot be asked: Set the `DEEPSEEK_API_KEY`"):
            await ask
    async with Hub.open("memory:") as hub:
        with pytest.raises(UsageError, match=r"the model of 'ada': .*DEEPSEEK_API_KEY"):
            await hub.register(agent)
        monkeypatch.setenv("DEEPSEEK_API_KEY", "a key")
        await hub.register(agent)


@pytest.mark.usefixtures("no_key")
def test_no_advertisement_for_other_software() -> None:
    with pytest.raises(UsageError) as refused:
        BridgedModel("openai-chat:gpt-5-mini").check()
    assert str(refused.value).endswith("to use the OpenAI provider.")


def test_models_are_equal_if_what_they_were_given_is() -> None:
    function = TestModel()
    assert BridgedModel(function) == BridgedModel(function)
    assert hash(BridgedModel(function)) == hash(BridgedModel(function))
    assert BridgedModel(function) != BridgedModel(TestModel(custom_output_text="x"))
    assert repr(BridgedModel("deepseek:deepseek-chat")) == "BridgedModel('deepseek:deepseek-chat')"
    assert (BridgedModel(function).provider, BridgedModel(function).name) == ("test", "test")


def test_without_the_package_a_sentence_says_what_to_install() -> None:
    script = (
        "import sys, antiphon; from antiphon.models.bridge import BridgedModel; "
        "assert not {'pydantic', 'pydantic_ai', 'openai'} & sys.modules.keys(); "
        "sys.modules['pydantic_ai'] = None; BridgedModel('mistral:large')"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "UsageError: 'mistral:large' needs pip install 'antiphon[models]'" in ended.stderr
