"""A model that answers by a script."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import UsageError
from antiphon.agents.call_results import Call, Reply, Usage
from antiphon.agents.messages import Answered, Asked, Request, StreamsReply, calls, says
from antiphon.core.errors import ModelError
from antiphon.core.views import Message
from antiphon.models.scripted import STREAMED_PIECE, ScriptedModel, ScriptEntry, WordCounter
from tests.support.stable_ids import stable_repr

ASK = Request("Be kind.", [Message("user", "Hello, how are you?")])


async def answers(script: Sequence[ScriptEntry], request: Request = ASK) -> list[Reply]:
    model = ScriptedModel(script)
    return [await model(request) for _ in script]


def shouted(request: Request) -> str:
    return request.messages[-1].text.upper()


async def thought(request: Request) -> list[Reply]:
    return [calls("look", {"in": request.system}), calls("look")]


@pytest.mark.parametrize(
    ("entry", "text", "asked"),
    [
        (says("Fine."), "Fine.", ()),
        ("Fine.", "Fine.", ()),
        ("", "", ()),
        (calls("look", {"at": 1}), "", (Call("look", {"at": 1}, "call_1"),)),
        (calls("look", text="Wait."), "Wait.", (Call("look", {}, "call_1"),)),
        ([calls("look"), calls("pay")], "", (Call("look", {}, "call_1"), Call("pay", {}, "call_2"))),
        ((calls("look"), says("Wait.")), "Wait.", (Call("look", {}, "call_1"),)),
        (
            Reply(calls=(Call("look", {}, "mine"), Call("pay"))),
            "",
            (Call("look", {}, "mine"), Call("pay", {}, "call_1")),
        ),
        (shouted, "HELLO, HOW ARE YOU?", ()),
        (lambda request: calls("look"), "", (Call("look", {}, "call_1"),)),
        (thought, "", (Call("look", {"in": "Be kind."}, "call_1"), Call("look", {}, "call_2"))),
    ],
    ids=stable_repr,
)
async def test_an_entry_and_its_reply(entry: ScriptEntry, text: str, asked: tuple[Call, ...]) -> None:
    [reply] = await answers([entry])
    assert (reply.text, reply.calls) == (text, asked)


async def test_the_script_is_followed_in_order() -> None:
    model = ScriptedModel(["one", calls("look"), "three"])
    other = Request("Be brief.", [])
    assert (model.left, model.requests) == (3, [])
    assert [(await model(request)).text for request in (ASK, other)] == ["one", ""]
    assert (model.left, model.requests) == (1, [ASK, other])


@pytest.mark.parametrize(("size", "entries"), [(0, "0 entries"), (1, "1 entry"), (2, "2 entries")])
async def test_the_script_is_over(size: int, entries: str) -> None:
    model = ScriptedModel(["fine"] * size)
    for _ in range(size):
        await model(ASK)
    for number in (size + 1, size + 2):
        with pytest.raises(ModelError, match=f"the script has {entries} and call {number} was made"):
            await model(ASK)
    assert (model.left, len(model.requests)) == (0, size + 2)


def angry(request: Request) -> Reply:
    raise LookupError("no words")


@pytest.mark.parametrize(
    ("entry", "kind", "message"),
    [
        (ValueError("broken"), ValueError, "broken"),
        (TimeoutError, TimeoutError, "^$"),
        (asyncio.CancelledError(), asyncio.CancelledError, "^$"),
        (lambda request: ValueError("broken"), ValueError, "broken"),
        (angry, LookupError, "no words"),
    ],
    ids=stable_repr,
)
async def test_an_entry_that_is_an_error(entry: ScriptEntry, kind: type[BaseException], message: str) -> None:
    model = ScriptedModel([entry, "again"])
    with pytest.raises(kind, match=message):
        await model(ASK)
    assert (model.left, model.requests) == (1, [ASK])
    assert (await model(ASK)).text == "again"


@pytest.mark.parametrize(
    ("entry", "given"),
    [
        (5, "5"),
        (None, "None"),
        ([], "[]"),
        (["text"], "['text']"),
        ({"text": "hello"}, "{'text': 'hello'}"),
        (Call("look"), "Call(name='look'"),
        (Reply, "<class"),
    ],
    ids=repr,
)
async def test_an_entry_that_is_none(entry: ScriptEntry, given: str) -> None:
    with pytest.raises(UsageError) as caught:
        ScriptedModel(["fine", entry])
    assert str(caught.value).startswith(f"entry 2 of the script is {given}")
    assert "; give says(…), calls(…), a list of calls(…)" in str(caught.value)
    model = ScriptedModel(["fine", lambda request: entry])  # type: ignore[return-value,list-item]
    await model(ASK)
    with pytest.raises(UsageError) as caught:
        await model(ASK)
    assert str(caught.value).startswith(f"what entry 2 of the script returned is {given}")


@pytest.mark.parametrize("script", ["hello", says("hello"), None, 5], ids=repr)
def test_a_script_that_is_none(script: Sequence[ScriptEntry]) -> None:
    with pytest.raises(UsageError, match=r"the script is .*; give a list with one entry for each model call"):
        ScriptedModel(script)


async def test_the_script_is_the_model_s_own() -> None:
    args: dict[str, object] = {"at": [1]}
    several = [calls("look", args)]
    script: list[ScriptEntry] = [several, "done"]
    model = ScriptedModel(script)
    args["at"], script[1] = [2], "changed"
    several.clear()
    assert (await model(ASK)).calls[0].args == {"at": [1]}
    assert (await model(ASK)).text == "done"


async def test_an_iterator_is_a_script_too() -> None:
    assert ScriptedModel(iter(["one", "two"])).left == 2


# Ids and counts


async def test_call_ids_go_on_from_call_to_call() -> None:
    replies = await answers([[calls("a"), calls("b")], "text", calls("c")])
    assert [call.call_id for reply in replies for call in reply.calls] == ["call_1", "call_2", "call_3"]


async def test_a_call_id_of_the_same_turn_is_not_used_again() -> None:
    earlier = Call("look", {}, "call_1")
    request = Request("", [], (Asked("", (earlier,)), Answered(earlier, "nothing")))
    [reply] = await answers([Reply(calls=(Call("a", {}, "call_2"), Call("b")))], request)
    assert [call.call_id for call in reply.calls] == ["call_2", "call_3"]


@pytest.mark.parametrize(
    ("entry", "usage"),
    [
        ("", Usage(6, 0)),
        ("Very well, thanks.", Usage(6, 3)),
        (calls("look"), Usage(6, 2)),
        (calls("look", {"at": "a b", "n": 1}, text="One moment."), Usage(6, 8)),
        ([calls("look"), calls("look")], Usage(6, 4)),
        (says("Very well.", usage=Usage(100, 20)), Usage(100, 20)),
        ([calls("look", usage=Usage(1, 2)), calls("look", usage=Usage(3, 4))], Usage(4, 6)),
        (calls("look", {"odd": {1, 2}, "half": "\udc80"}), Usage(6, 6)),
    ],
    ids=repr,
)
async def test_what_a_reply_costs(entry: ScriptEntry, usage: Usage) -> None:
    assert [reply.usage for reply in await answers([entry])] == [usage]


async def test_what_was_exchanged_in_the_turn_costs_too() -> None:
    call = Call("look", {}, "call_1")
    request = Request("Be kind.", ASK.history, (Asked("One moment.", (call,)), Answered(call, "it is raining")))
    [reply] = await answers(["Rain."], request)
    assert reply.usage == Usage(2 + 4 + 2 + 3, 1)


# Heard while it speaks


async def test_a_reply_in_pieces() -> None:
    model = ScriptedModel(["  Very well,\nthanks. ", calls("look")])
    assert isinstance(model, StreamsReply)
    heard = [piece async for piece in model.stream(ASK)]
    assert heard[:-1] == ["  ", "Very ", "well,\n", "thanks. "]
    assert heard[-1] == Reply("  Very well,\nthanks. ", usage=Usage(6, 3))
    assert [piece async for piece in model.stream(ASK)] == [Reply("", (Call("look", {}, "call_1"),), Usage(6, 2))]
    assert model.requests == [ASK, ASK]


async def test_an_error_in_place_of_pieces() -> None:
    with pytest.raises(ValueError, match="broken"):
        [piece async for piece in ScriptedModel([ValueError("broken")]).stream(ASK)]


@given(st.text())
def test_pieces_are_the_text(text: str) -> None:
    assert "".join(STREAMED_PIECE.findall(text)) == text


pool = [
    Message("user", "one"),
    Message("user", "two words"),
    Message("assistant", ""),
    Message("user", "one two three"),
]
histories = st.lists(st.lists(st.sampled_from(pool), max_size=6), max_size=8)


@given(histories)
def test_words_are_counted_whatever_was_counted_before(each: list[list[Message]]) -> None:
    counted = WordCounter()
    for history in each:
        assert counted.words(history) == sum(len(message.text.split()) for message in history)
