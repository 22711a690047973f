"""Chat completions from the inside: what is understood, what is remembered, and what a channel begins with."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from antiphon import Agent, Denied, Envelope, Hub, Reply, Request, says
from antiphon.cli import commands
from antiphon.core.codec import digest_of
from antiphon.core.events import EV_HISTORY_IMPORTED, EV_TEXT, EV_TURN_ASSIGNED
from antiphon.core.replaying import replay_decisions
from antiphon.core.views import Message
from antiphon.orchestration.catalogue import ruleset_for
from antiphon.runtime.agent import ImportedHistory, answer_of, channel_of
from antiphon.runtime.turn_events import TokenEvent
from antiphon.server.app import decode_body
from antiphon.server.chat_protocol import (
    MAX_SAME_DIGEST,
    PART_GAP,
    ChatChunk,
    ChatMemory,
    ChatNote,
    ChatPosition,
    ChatRequest,
    ChunkWriter,
    SentText,
)
from antiphon.server.chat_routes import conversation_of
from antiphon.server.problems import RequestRefused
from antiphon.testing import ManualClock, canonical_digest
from tests.support.served_hub import served_hub

EARLIER = [
    Message("system", "Be brief."),
    Message("user", "Hello"),
    Message("assistant", "Good day."),
    Message("user", "Well"),
]


async def recite(request: Request) -> Reply:
    """A model that says everything that it was shown."""
    return says(" / ".join(f"{role}:{text}" for role, text in request.history))


def asked(**fields: object) -> ChatRequest:
    """A request as it is read from the wire."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return decode_body(json.dumps(body).encode(), ChatRequest)


def said(*roles: str) -> list[dict[str, object]]:
    return [{"role": role, "content": f"{role} {place}"} for place, role in enumerate(roles)]


# What is understood


def test_a_conversation_ends_with_what_is_said_now() -> None:
    conversation = conversation_of(asked(messages=said("system", "developer", "user", "assistant", "user")))
    assert conversation.text == "user 4"
    assert conversation.earlier == (
        ("system", "system 0"),
        ("system", "developer 1"),
        ("user", "user 2"),
        ("assistant", "assistant 3"),
    )
    assert [message.role for message in conversation.seeds()] == ["system", "system", "user", "assistant"]


def test_texts_in_parts_are_one_text_and_an_empty_answer_is_none() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": parts},
    ]
    conversation = conversation_of(asked(messages=messages))
    assert conversation.text == "one\ntwo"
    assert conversation.seeds() == [("user", "a")]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.3, "top_p": 1, "max_tokens": 5, "max_completion_tokens": 5, "seed": 1, "stop": ["x"]},
        {"user": "u", "store": True, "logit_bias": {}, "reasoning_effort": "low", "parallel_tool_calls": False},
        {"tools": [], "tool_choice": "none", "functions": None, "n": 1, "response_format": {"type": "text"}},
        {"tool_choice": "auto", "modalities": ["text"], "logprobs": False, "something_of_next_year": {"a": [1]}},
    ],
)
def test_what_changes_nothing_is_taken(fields: dict[str, object]) -> None:
    assert conversation_of(asked(**fields)).text == "Hi"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("functions", [{"name": "f"}]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("function_call", {"name": "f"}),
        ("n", 2),
        ("n", 0),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("audio", {"voice": "v"}),
        ("modalities", ["text", "audio"]),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("web_search_options", {}),
    ],
)
def test_what_changes_the_meaning_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestRefused, match=rf"^{field} is .* not taken here: .*; leave it out") as refused:
        conversation_of(asked(**{field: value}))
    assert (refused.value.status, refused.value.reason) == (400, "unsupported")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"role": "tool", "content": "x"}, r"messages\[0\] has the role 'tool', which is not taken here"),
        ({"role": "function", "content": "x"}, r"messages\[0\] has the role 'function'"),
        ({"role": "boss", "content": "x"}, r"the role 'boss'; there are: system, developer, user, assistant"),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, r"messages\[0\] calls tools"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "the type 'image_url'"),
        ({"role": "user"}, r"messages\[0\] has no content"),
    ],
)
def test_a_message_that_no_agent_can_read_is_refused(message: dict[str, object], why: str) -> None:
    with pytest.raises(RequestRefused, match=why) as refused:
        conversation_of(asked(messages=[message, {"role": "user", "content": "Hi"}]))
    assert refused.value.status == 400


@pytest.mark.parametrize("last", ["assistant", "system"])
def test_the_last_message_is_the_user_s(last: str) -> None:
    with pytest.raises(
        RequestRefused, match=f"the last of the messages has the role {last!r}; end with what the user says"
    ):
        conversation_of(asked(messages=said("user", last)))


@pytest.mark.parametrize(
    "body", [b'{"model": "m"}', b'{"model": "m", "messages": []}', b'{"model": 1, "messages": [{}]}']
)
def test_what_is_no_request_at_all_is_refused_with_its_place(body: bytes) -> None:
    with pytest.raises(RequestRefused) as refused:
        decode_body(body, ChatRequest)
    assert refused.value.status == 422


# What is sent


@given(parts=st.lists(st.lists(st.text(max_size=5), max_size=4), max_size=4), answer=st.text(max_size=12))
def test_what_is_sent_ends_with_the_answer_whatever_was_streamed(parts: list[list[str]], answer: str) -> None:
    speech, sent = SentText(), ""
    for part in parts:
        speech.ends_part()
        sent += "".join(speech.piece(piece) for piece in part)
    sent += speech.whole(answer)
    assert sent == speech.said
    assert bare(sent).endswith(bare(answer))


def bare(text: str) -> str:
    """A text without its white space."""
    return "".join(text.split())


WHITE = st.text(alphabet=" \n\t\u00a0", max_size=3)


@given(words=st.lists(st.text(alphabet="ab1.", min_size=1, max_size=4), min_size=1, max_size=5), data=st.data())
def test_white_space_makes_no_other_answer(words: list[str], data: st.DataObject) -> None:
    """However the same words are spaced when they are streamed, they are sent once."""

    def spaced() -> str:
        return "".join(data.draw(WHITE) + word for word in words) + data.draw(WHITE)

    speech, streamed = SentText(), spaced()
    cut = data.draw(st.integers(0, len(streamed)))
    speech.piece(streamed[:cut])
    speech.piece(streamed[cut:])
    assert speech.whole(spaced()) == ""
    assert speech.said == streamed
    begun = SentText()
    begun.piece(streamed[:cut])
    begun.whole(spaced())
    assert bare(begun.said) == "".join(words)


@pytest.mark.parametrize(
    ("pieces", "answer", "left"),
    [
        (["Good day.", "\n"], "Good day.", ""),
        (["\n\n", "Good day."], "Good day.", ""),
        (["Good  day."], "Good day.\n", ""),
        (["Good "], "  Good day.", "day."),
        (["  "], "Good day.", "Good day."),
        (["Good day."], "Good day, Ann.", f"{PART_GAP}Good day, Ann."),
        (["Good day."], " \n", ""),
    ],
)
def test_an_answer_that_was_streamed_with_other_white_space_is_not_sent_again(
    pieces: list[str], answer: str, left: str
) -> None:
    speech = SentText()
    for piece in pieces:
        speech.piece(piece)
    assert speech.whole(answer) == left


def test_words_before_a_tool_that_are_the_answer_are_not_sent_again() -> None:
    speech = SentText()
    speech.piece("Done. ")
    speech.ends_part()
    assert speech.whole("Done.") == ""


def test_what_was_streamed_is_not_sent_again() -> None:
    speech = SentText()
    assert [speech.piece("Good "), speech.piece("day."), speech.whole("Good day.")] == ["Good ", "day.", ""]
    speech = SentText()
    assert [speech.piece("Good "), speech.whole("Good day.")] == ["Good ", "day."]


def test_parts_stand_apart() -> None:
    speech = SentText()
    speech.piece("One moment.")
    speech.ends_part()
    speech.ends_part()
    assert speech.whole("42") == f"{PART_GAP}42"
    other = SentText()
    other.piece("broken off")
    assert other.whole("42") == f"{PART_GAP}42"


def test_who_speaks_next_stands_apart_too() -> None:
    head = ChatChunk("chatcmpl-1", "chat.completion.chunk", 0, "m", [])
    telling = ChunkWriter(head, lambda *_: ChatNote("b", "c", None), events=False, usage=False)
    spoken = [TokenEvent("a", "One"), TokenEvent("a", " two."), TokenEvent("b", "Three.")]
    assert [chunk.choices[0].delta["content"] for event in spoken for chunk in telling.of(0, event)] == [
        "One",
        " two.",
        f"{PART_GAP}Three.",
    ]


# What is remembered


def test_a_conversation_is_used_once_and_those_alike_are_not_mixed_up() -> None:
    memory = ChatMemory()
    memory.keep("a", ChatPosition("one", 1))
    memory.keep("a", ChatPosition("two", 1))
    memory.keep("a", ChatPosition("two", 1))
    assert memory.known("a") == ("two", 1)
    assert [memory.take("a"), memory.take("a"), memory.take("a")] == [("two", 1), ("one", 1), None]
    assert memory.known("a") is None


def test_memory_is_bounded_and_forgets_what_was_not_asked_for_longest() -> None:
    memory = ChatMemory(most=3)
    for name in "abc":
        memory.keep(name, ChatPosition(name, 1))
    memory.keep("a", ChatPosition("a", 2))
    memory.keep("d", ChatPosition("d", 1))
    assert [bool(memory.known(name)) for name in "abcd"] == [True, False, True, True]
    for number in range(2 * MAX_SAME_DIGEST):
        memory.keep("d", ChatPosition(str(number), 1))
    assert sum(memory.take("d") is not None for _ in range(3 * MAX_SAME_DIGEST)) == MAX_SAME_DIGEST


# What a channel begins with


async def seeded(hub: Hub, before: ImportedHistory, thread_id: str = "t") -> tuple[str, str]:
    """The id of a channel that begins with this, and what its agent answers then."""
    agent = Agent("poet", recite)
    channel = await channel_of(hub, agent, thread_id, before=before)
    return channel.channel_id, (await answer_of(channel, agent, "Now", message_id="m")).text


RECITED = "user:Be brief. / user:Hello / assistant:Good day. / user:Well / user:Now"


async def test_an_agent_is_shown_what_was_said_before_in_order_and_answers_only_what_is_said_now() -> None:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        channel_id, answer = await seeded(hub, ImportedHistory(EARLIER, context_vars={"seen": 1}))
        log = await hub.log(channel_id)
        texts = [
            (each.sender_id, each.event_type, each.event_data.get("role"), each.event_data["text"])
            for each in log
            if "text" in each.event_data
        ]
        assert answer == RECITED
        assert texts == [
            ("user", EV_HISTORY_IMPORTED, "system", "Be brief."),
            ("user", EV_HISTORY_IMPORTED, "user", "Hello"),
            ("user", EV_HISTORY_IMPORTED, "assistant", "Good day."),
            ("user", EV_HISTORY_IMPORTED, "user", "Well"),
            ("user", EV_TEXT, None, "Now"),
            ("poet", EV_TEXT, None, RECITED),
        ]
        assert len([each for each in log if each.event_type == EV_TURN_ASSIGNED]) == 1
        state = (await hub.core.live(channel_id)).state
        assert (state.context_vars, state.owed, state.unattended, state.turn_count) == ({"seen": 1}, (), 1, 2)


async def test_only_a_new_channel_begins_with_what_was_said_before() -> None:
    async with Hub.open("memory:") as hub:
        first, _ = await seeded(hub, ImportedHistory(EARLIER))
        again, answer = await seeded(hub, ImportedHistory([Message("user", "Something else")]))
        assert (again, answer) == (first, RECITED)


def folded(log: list[Envelope]) -> str:
    ruleset = ruleset_for("conversation", {})
    return digest_of(ruleset.fold_all(ruleset.begin(log[0].channel_id), log))


async def test_the_laws_of_logs_hold_for_a_channel_that_begins_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    before = ImportedHistory(EARLIER, active="poet/muse", context_vars={"a": [1]})
    async with Hub.open(url, clock=ManualClock()) as hub:
        channel_id, _ = await seeded(hub, before)
        log, fold = await hub.log(channel_id), digest_of((await hub.core.live(channel_id)).fold)
        other, _ = await seeded(hub, before, "another")
        assert canonical_digest(await hub.log(other)) == canonical_digest(log)
    replay = replay_decisions(log, ruleset_for("conversation", {}))
    assert (replay.difference, replay.decisions) == (None, 3)
    assert folded(log) == fold
    async with Hub.open(url, clock=ManualClock()) as hub:
        assert await hub.log(channel_id) == log
        assert digest_of((await hub.core.live(channel_id)).fold) == fold


async def test_the_command_line_reads_and_replays_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    async with Hub.open(url) as hub:
        channel_id, _ = await seeded(hub, ImportedHistory(EARLIER))

    def run(*args: str) -> str:
        result = CliRunner().invoke(commands, [*args, "--store", url])
        assert result.exit_code == 0, result.output
        return result.stdout

    shown = await asyncio.to_thread(run, "log", channel_id)
    assert [line.split("  ")[-1] for line in shown.splitlines()[-6:]] == [
        *(f"[imported as {each.role}] {each.text}" for each in EARLIER),
        "Now",
        RECITED,
    ]
    assert (
        await asyncio.to_thread(run, "replay", channel_id) == "same  3 decisions made again, each as it was recorded\n"
    )
    await asyncio.to_thread(run, "verify")


async def test_what_cannot_be_said_cannot_have_been_said_before() -> None:
    async with Hub.open("memory:") as hub:
        with pytest.raises(Denied) as denied:
            await seeded(hub, ImportedHistory([Message("user", "a"), Message("assistant", "x" * 300_000)]))
        assert denied.value.reason == "too_large"
        assert await hub.channels() == []


async def test_the_last_answer_is_of_whoever_of_the_team_gave_it() -> None:
    async with Hub.open("memory:") as hub:
        lead = Agent("lead", recite, agents=[Agent("muse", recite)])
        channel = await channel_of(hub, lead, "t", before=ImportedHistory(EARLIER, active="lead/muse"))
        assert channel.state.active == {"lead": "lead/muse"}
        assert (await answer_of(channel, lead, "Now", message_id=None)).agent == "muse"


async def test_the_document_tells_of_chat_completions() -> None:
    async with served_hub() as here:
        client = await here.client()
        document = (await client.get("/openapi.json")).json()
        operation = document["paths"]["/v1/chat/completions"]["post"]
        assert operation["x-scope"] == "invoke"
        assert operation["requestBody"]["content"]["application/json"]["schema"] == {
            "$ref": "#/components/schemas/ChatRequest"
        }
        assert document["components"]["schemas"]["ChatRequest"]["required"] == ["model", "messages"]
        assert {"404", "409", "413", "429", "502", "504"} <= operation["responses"].keys()
