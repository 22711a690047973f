"""Replies that come as content blocks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import Agent, Hub, Request, TurnFailed, UsageError
from antiphon.agents.call_results import MAX_NESTED_MESSAGES, Call, Reply, Usage, one_reply, read_blocks
from antiphon.agents.messages import ModelAnswer, calls, says
from antiphon.core.views import Message
from antiphon.models.scripted import ScriptedModel, ScriptEntry

ASK = Request("Be kind.", [Message("user", "Hello!")])
THOUGHT: dict[str, object] = {"type": "thinking", "thinking": "They are angry.", "signature": "c2ln"}
USE = {"type": "tool_use", "name": "pay", "input": {"cents": 5}, "id": "toolu_1"}
FUNCTION = {"type": "function_call", "name": "look", "arguments": '{"at": [1]}', "call_id": "call_9"}


def text(said: object) -> dict[str, object]:
    return {"type": "text", "text": said}


def message(content: object) -> dict[str, object]:
    return {"type": "message", "role": "assistant", "content": content}


def nested(depth: int) -> dict[str, object]:
    """A text inside so many messages."""
    block: dict[str, object] = text("deep")
    for _ in range(depth):
        block = message([block])
    return block


@pytest.mark.parametrize(
    ("blocks", "said", "asked"),
    [
        ([], "", ()),
        (["Hello"], "Hello", ()),
        ([text("Hel"), "lo", {"type": "output_text", "text": "!\n", "annotations": []}, text("")], "Hello!\n", ()),
        ([{"type": "refusal", "refusal": "I will not."}], "I will not.", ()),
        ([message("Hello")], "Hello", ()),
        ([message([]), message([text("a"), message(["b"])]), text("c")], "abc", ()),
        ((message((text("a"), text("b"))),), "ab", ()),
        ([nested(MAX_NESTED_MESSAGES)], "deep", ()),
        ([THOUGHT, text("Fine.")], "Fine.", ()),
        ([{"type": "redacted_thinking", "data": "eA=="}, {"type": "reasoning", "summary": [text("Hm.")]}], "", ()),
        ([{"type": "thinking", "text": "no", "content": [text("no")]}, {"type": "later", "text": "no"}], "", ()),
        ([{"type": "thinking"}, {"type": ""}], "", ()),
        ([USE], "", (Call("pay", {"cents": 5}, "toolu_1"),)),
        ([FUNCTION], "", (Call("look", {"at": [1]}, "call_9"),)),
        ([{**FUNCTION, "arguments": {"at": 2}}], "", (Call("look", {"at": 2}, "call_9"),)),
        ([{**FUNCTION, "arguments": " {} ", "call_id": None}], "", (Call("look", {}, ""),)),
        ([{"type": "tool_use", "name": "pay", "input": {}}], "", (Call("pay"),)),
        (
            [text("First "), FUNCTION, THOUGHT, message([USE, text("second.")])],
            "First second.",
            (Call("look", {"at": [1]}, "call_9"), Call("pay", {"cents": 5}, "toolu_1")),
        ),
    ],
)
def test_blocks_and_what_they_say(blocks: Sequence[object], said: str, asked: tuple[Call, ...]) -> None:
    assert read_blocks(blocks) == (said, asked)


A_BLOCK = "; it should be a text or a dict with a 'type'"
A_TYPE = "; it should be a text such as 'text' or 'tool_use'"
A_TEXT = "; it should be a text"


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        (5, f"is 5{A_BLOCK}"),
        (None, f"is None{A_BLOCK}"),
        (["Hello"], f"is ['Hello']{A_BLOCK}"),
        ({"text": "Hello"}, f"has no 'type'{A_TYPE}"),
        ({"type": 7}, f"has 7 as its 'type'{A_TYPE}"),
        (text(None), f"of type 'text' has None as its 'text'{A_TEXT}"),
        ({"type": "output_text"}, f"of type 'output_text' has no 'text'{A_TEXT}"),
        ({"type": "refusal", "text": "No."}, f"of type 'refusal' has no 'refusal'{A_TEXT}"),
        (message(3), f"of type 'message' has 3 as its 'content'{A_TEXT} or a list of blocks"),
        (message([text(3)]), f"of type 'text' has 3 as its 'text'{A_TEXT}"),
        (message([4]), f"is 4{A_BLOCK}"),
        ({**USE, "name": ""}, "of type 'tool_use' has '' as its 'name'; it should be the name of a tool"),
        ({**USE, "name": 3}, f"of type 'tool_use' has 3 as its 'name'{A_TEXT}"),
        ({**USE, "id": 3}, f"of type 'tool_use' has 3 as its 'id'{A_TEXT}"),
    ],
    ids=repr,
)
def test_a_block_that_is_malformed(block: object, complaint: str) -> None:
    with pytest.raises(TypeError) as caught:
        read_blocks(["Hello", block])
    assert str(caught.value) == f"a content block {complaint}"


@pytest.mark.parametrize("given", ["", "{", "[1]", "null", "{} and more", '{"a": NaN}', "\ud800", None, [1]], ids=repr)
def test_arguments_that_are_no_object_are_a_fault_of_their_call(given: object) -> None:
    _, asked = read_blocks([{**FUNCTION, "arguments": given}, {**USE, "input": given}, USE])
    assert [(call.args, isinstance(call.fault, str)) for call in asked] == [
        ({}, True),
        ({}, True),
        ({"cents": 5}, False),
    ]


def test_messages_do_not_go_down_for_ever() -> None:
    itself: list[object] = []
    itself.append(message(itself))
    for blocks in ([nested(MAX_NESTED_MESSAGES + 1)], itself):
        with pytest.raises(TypeError, match="more than 8 messages stand inside each other; give their blocks in one"):
            read_blocks(blocks)


SECRET = "\N{THOUGHT BALLOON}"
SAID = st.text(st.characters(exclude_characters=SECRET, exclude_categories=["Cs"]), max_size=8)
SPOKEN = st.one_of(
    SAID,
    st.builds(text, SAID),
    st.builds(lambda said: {"type": "output_text", "text": said}, SAID),
    st.builds(lambda said: {"type": "refusal", "refusal": said}, SAID),
)
KEPT_BACK = st.builds(
    lambda kind, field, said: {"type": kind, field: f"{said}{SECRET}", "content": [text(SECRET)]},
    st.sampled_from(["reasoning", "thinking", "redacted_thinking", "something_new"]),
    st.sampled_from(["text", "thinking", "data", "summary", "refusal"]),
    SAID,
)
BLOCKS = st.lists(
    st.recursive(
        SPOKEN | KEPT_BACK,
        lambda inner: st.builds(message, st.lists(inner, max_size=4)),
        max_leaves=MAX_NESTED_MESSAGES,
    ),
    max_size=8,
)


def words(block: object) -> list[str]:
    """What a block says, told apart from what it thinks."""
    match block:
        case str():
            return [block]
        case {"type": "message", "content": list(inner)}:
            return list(itertools.chain.from_iterable(map(words, inner)))
        case {"type": "text" | "output_text", "text": str(said)} | {"type": "refusal", "refusal": str(said)}:
            return [said]
        case _:
            return []


@given(BLOCKS)
def test_whatever_the_nesting_all_words_and_no_thoughts_are_kept(blocks: list[object]) -> None:
    said, asked = read_blocks(blocks)
    assert said == "".join(word for block in blocks for word in words(block))
    assert SECRET not in said
    assert asked == ()


# As one reply


USED = Usage(3, 4)


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        (says([text("a"), THOUGHT, "b"], usage=USED), Reply("ab", usage=USED)),
        (says([]), Reply("")),
        (says((text("a"), USE)), Reply("a", (Call("pay", {"cents": 5}, "toolu_1"),))),
        ([text("a"), "b", USE], Reply("ab", (Call("pay", {"cents": 5}, "toolu_1"),))),
        (["b", text("a")], Reply("ba")),
        ((THOUGHT,), Reply("")),
        (
            Reply([FUNCTION, "Wait."], (Call("first"),), USED),  # type: ignore[arg-type]
            Reply("Wait.", (Call("first"), Call("look", {"at": [1]}, "call_9")), USED),
        ),
        (
            [says([text("a"), text("b")], usage=USED), calls("look", usage=USED), says([USE]), says("c")],
            Reply("ab\nc", (Call("look"), Call("pay", {"cents": 5}, "toolu_1")), Usage(6, 8)),
        ),
        (says("plain"), Reply("plain")),
        (Reply(None, (Call("look"),)), Reply("", (Call("look"),))),  # type: ignore[arg-type]
        ([Reply(None), says("a")], Reply("a")),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_an_answer_as_one_reply(answer: ModelAnswer, reply: Reply) -> None:
    assert one_reply(answer) == reply


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (5, "a model returned int; return says"),
        ("text", "a model returned str; return says"),
        ([], "a model returned list; return says"),
        (["text"], "a model returned list; .* or a list of content blocks"),
        (text("a"), "a model returned dict; .* or a list of content blocks"),
        ([text("a"), says("b")], "a content block is Reply"),
        ([says([text(1)]), says("b")], "a content block of type 'text' has 1 as its 'text'"),
    ],
    ids=repr,
)
def test_an_answer_that_is_none(answer: object, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        one_reply(answer)


async def test_a_script_may_hold_blocks() -> None:
    script: list[ScriptEntry] = [
        says([THOUGHT, text("One "), text("moment."), USE]),
        lambda request: says([message("Done.")]),
    ]
    plain, streamed = ScriptedModel(script), ScriptedModel(script)
    replies = [await plain(ASK), await plain(ASK)]
    assert [(reply.text, reply.calls) for reply in replies] == [
        ("One moment.", (Call("pay", {"cents": 5}, "toolu_1"),)),
        ("Done.", ()),
    ]
    heard = [[piece async for piece in streamed.stream(ASK)] for _ in script]
    assert heard == [["One ", "moment.", replies[0]], ["Done.", replies[1]]]


def test_a_script_with_malformed_blocks_is_refused() -> None:
    with pytest.raises(UsageError, match=r"entry 2 of the script is Reply\(text=\[5\]"):
        ScriptedModel(["fine", says([5])])  # type: ignore[list-item]


async def test_a_turn_ends_in_what_the_blocks_say() -> None:
    async def provider(request: Request) -> list[dict[str, object]]:
        return [THOUGHT, message([text("It is "), text("fine.")])]

    async with Hub.open("memory:") as hub:
        assert (await Agent("clerk", model=provider).invoke("How is it?", hub=hub)).text == "It is fine."


async def test_a_turn_fails_over_malformed_blocks() -> None:
    async def provider(request: Request) -> list[dict[str, object]]:
        return [text(5)]

    async with Hub.open("memory:") as hub:
        with pytest.raises(TurnFailed) as caught:
            await Agent("clerk", model=provider).invoke("How is it?", hub=hub)
    assert caught.value.reason == "model_error"
    assert f"a content block of type 'text' has 5 as its 'text'{A_TEXT}" in caught.value.detail
