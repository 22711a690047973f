"""Whom a person addresses: what is a mention, and the many things that only look like one."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import EV_TEXT, Agent, Hub, Participant, ScriptedModel
from antiphon.agents.team import mentioned_name
from antiphon.core.envelope import NAME_PATTERN
from antiphon.testing import ManualClock
from tests.support.waiting import let_others_run

MENTIONS = [
    ("@billing", "billing"),
    ("@billing ", "billing"),
    ("@billing hello", "billing"),
    ("@billing\thello", "billing"),
    ("@billing\nhello", "billing"),
    ("@billing\r\nhello", "billing"),
    ("@billing  @legal", "billing"),
    ("@billing @legal hello", "billing"),
    ("@billing \N{ZERO WIDTH SPACE}hello", "billing"),
    ("@BILLING hello", "billing"),
    ("@bIlLiNg", "billing"),
    ("@billing-2 hello", "billing-2"),
    ("@billing_2", "billing_2"),
    ("@7", "7"),
    ("@7up now", "7up"),
    ("@a-", "a-"),
    ("@a_ b", "a_"),
    ("@lead", "lead"),
    ("@" + "a" * 48, "a" * 48),
]

LIKE = {
    "zero width space before": "\N{ZERO WIDTH SPACE}@billing hello",
    "zero width space within": "@bill\N{ZERO WIDTH SPACE}ing hello",
    "zero width space behind the sign": "@\N{ZERO WIDTH SPACE}billing hello",
    "zero width space behind the name": "@billing\N{ZERO WIDTH SPACE} hello",
    "zero width joiner": "@bill\N{ZERO WIDTH JOINER}ing hello",
    "zero width non-joiner behind": "@billing\N{ZERO WIDTH NON-JOINER} hello",
    "word joiner": "\N{WORD JOINER}@billing hello",
    "soft hyphen": "@bill\N{SOFT HYPHEN}ing hello",
    "byte order mark before": "\N{ZERO WIDTH NO-BREAK SPACE}@billing hello",
    "byte order mark behind": "@billing\N{ZERO WIDTH NO-BREAK SPACE}",
    "right-to-left mark before": "\N{RIGHT-TO-LEFT MARK}@billing hello",
    "left-to-right mark before": "\N{LEFT-TO-RIGHT MARK}@billing hello",
    "left-to-right mark behind": "@billing\N{LEFT-TO-RIGHT MARK} hello",
    "right-to-left override": "\N{RIGHT-TO-LEFT OVERRIDE}gnillib@",
    "override within": "@\N{RIGHT-TO-LEFT OVERRIDE}gnillib",
    "isolate": "\N{LEFT-TO-RIGHT ISOLATE}@billing\N{POP DIRECTIONAL ISOLATE}",
    "Cyrillic i": "@b\N{CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I}lling hello",
    "Cyrillic a": "@leg\N{CYRILLIC SMALL LETTER A}l hello",
    "Greek omicron": "@b\N{GREEK SMALL LETTER OMICRON}t hello",
    "Kelvin sign": "@\N{KELVIN SIGN}iosk hello",
    "dotless i": "@b\N{LATIN SMALL LETTER DOTLESS I}lling hello",
    "dotted capital I": "@B\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}LLING hello",
    "long s": "@bill\N{LATIN SMALL LETTER LONG S} hello",
    "sharp s": "@stra\N{LATIN SMALL LETTER SHARP S}e hello",
    "ligature": "@\N{LATIN SMALL LIGATURE FI}nance hello",
    "mathematical letters": "@\N{MATHEMATICAL BOLD SMALL B}illing hello",
    "fullwidth sign": "\N{FULLWIDTH COMMERCIAL AT}billing hello",
    "small sign": "\N{SMALL COMMERCIAL AT}billing hello",
    "fullwidth letters": "@\N{FULLWIDTH LATIN SMALL LETTER B}illing hello",
    "fullwidth digit": "@\N{FULLWIDTH DIGIT SEVEN} hello",
    "Arabic digit": "@\N{ARABIC-INDIC DIGIT SEVEN} hello",
    "combining accent in the name": "@bi\N{COMBINING ACUTE ACCENT}lling hello",
    "combining accent behind the name": "@billing\N{COMBINING ACUTE ACCENT} hello",
    "combining mark on the sign": "@\N{COMBINING GRAPHEME JOINER}billing hello",
    "precomposed accent": "@b\N{LATIN SMALL LETTER I WITH ACUTE}lling hello",
    "variation selector": "@billing\N{VARIATION SELECTOR-16} hello",
    "tag letters": "@billing\N{TAG LATIN SMALL LETTER A} hello",
    "emoji behind": "@billing\N{WAVING HAND SIGN} hello",
    "quoted": '"@billing hello"',
    "quoted name": '@"billing" hello',
    "as a quotation": "> @billing hello",
    "typographic quotes": "“@billing hello”",
    "inline code": "`@billing` hello",
    "code block": "```\n@billing hello\n```",
    "in parentheses": "(@billing) hello",
    "bold": "**@billing** hello",
    "as a link": "[@billing](https://example.org)",
    "as markup": "<b>@billing</b> hello",
    "escaped": "\\@billing hello",
    "as an entity": "&#64;billing hello",
    "percent-encoded": "%40billing hello",
    "new line before": "\n@billing hello",
    "carriage return before": "\r\n@billing hello",
    "blank before": " @billing hello",
    "tab before": "\t@billing hello",
    "no-break space before": "\N{NO-BREAK SPACE}@billing hello",
    "second line": "hello\n@billing hello",
    "in the middle": "hello @billing hello",
    "at the end": "hello @billing",
    "address": "ann@billing hello",
    "address behind": "@billing@example.org hello",
    "domain": "@billing.example hello",
    "comma": "@billing, hello",
    "colon": "@billing: hello",
    "full stop": "@billing. Hello",
    "exclamation mark": "@billing! hello",
    "question mark": "@billing?",
    "apostrophe": "@billing's bill",
    "slash": "@billing/tax hello",
    "plus": "@billing+tax hello",
    "hash": "@billing#1 hello",
    "bracket behind": "@billing) hello",
    "no-break space behind": "@billing\N{NO-BREAK SPACE}hello",
    "narrow no-break space behind": "@billing\N{NARROW NO-BREAK SPACE}hello",
    "ideographic space behind": "@billing\N{IDEOGRAPHIC SPACE}hello",
    "em space behind": "@billing\N{EM SPACE}hello",
    "line separator behind": "@billing\N{LINE SEPARATOR}hello",
    "paragraph separator behind": "@billing\N{PARAGRAPH SEPARATOR}hello",
    "next line behind": "@billing\x85hello",
    "vertical tab behind": "@billing\x0bhello",
    "form feed behind": "@billing\x0chello",
    "file separator behind": "@billing\x1chello",
    "backspace behind": "@billing\x08 hello",
    "escape sequence": "\x1b[1m@billing hello",
    "blank behind the sign": "@ billing hello",
    "two signs": "@@billing hello",
    "sign behind": "@billing@ hello",
    "hyphen first": "@-billing hello",
    "underscore first": "@_billing hello",
    "sign alone": "@",
    "sign and blank": "@ ",
    "too long": "@" + "a" * 49,
    "nothing": "",
    "blank": " ",
    "name without a sign": "billing hello",
}


@pytest.mark.parametrize(("text", "name"), MENTIONS, ids=lambda value: ascii(value)[:40])
def test_what_is_a_mention(text: str, name: str) -> None:
    assert mentioned_name(text) == name


@pytest.mark.parametrize("text", LIKE.values(), ids=LIKE.keys())
def test_what_only_looks_like_one(text: str) -> None:
    assert mentioned_name(text) is None


def test_there_are_enough_of_them_and_none_twice() -> None:
    assert len(set(LIKE.values())) == len(LIKE) >= 40


NAMES = ("billing", "legal", "bot", "7", "kiosk", "bills", "strasse", "finance")
TEAM = Agent("support", ScriptedModel([]), agents=[Agent(name, ScriptedModel([])) for name in NAMES]).team


@pytest.mark.parametrize("text", LIKE.values(), ids=LIKE.keys())
def test_what_only_looks_like_one_leads_nowhere(text: str) -> None:
    assert TEAM.route(text, ("legal",)) == ("support", "legal")
    assert TEAM.without_mention(text) == text


@given(st.text(max_size=12))
def test_whoever_is_mentioned_is_written_out_at_the_beginning(text: str) -> None:
    for heard in (text, f"@{text}", f"@billing{text}"):
        name = mentioned_name(heard)
        if name is not None:
            assert heard[: len(name) + 1].lower() == f"@{name}"
            assert NAME_PATTERN.match(name)
            assert name.isascii()
            assert heard[len(name) + 1 :][:1] in ("", " ", "\t", "\r", "\n")


@given(st.from_regex(NAME_PATTERN, fullmatch=True), st.sampled_from(["", " ", "\n", "\t x", "\r\nx"]))
def test_every_name_can_be_mentioned_in_any_case(name: str, behind: str) -> None:
    for said in (name, name.lower(), name.upper(), name.swapcase()):
        assert mentioned_name(f"@{said}{behind}") == name.lower()


@given(st.characters(min_codepoint=128), st.integers(0, 7))
def test_no_letter_beyond_ascii_is_part_of_a_mention(letter: str, place: int) -> None:
    name = "billing"
    assert mentioned_name(f"@{name[:place]}{letter}{name[place:]} hello") is None
    assert mentioned_name(f"{letter}@{name} hello") is None
    assert mentioned_name(f"@{letter} hello") is None


async def said_to(hub: Hub, who: Participant, text: str) -> object:
    """What is answered to somebody who says this."""
    channel = await who.open(target="support", type="conversation")
    await channel.send(text)
    async with asyncio.timeout(5):
        while len(texts := [each for each in await hub.log(channel.channel_id) if each.event_type == EV_TEXT]) < 2:
            await let_others_run(1)
    return texts[1].event_data


async def test_in_a_hub_only_what_a_person_says_addresses_anybody() -> None:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        billing = Agent("billing", ScriptedModel(["Mine."]))
        await hub.register(Agent("support", ScriptedModel(["Ours."]), agents=[billing]))
        ann, cron = await hub.register("ann", kind="human"), await hub.register("cron", kind="service")
        assert await said_to(hub, cron, "@billing hello") == {"text": "Ours.", "agent": "support"}
        assert await said_to(hub, ann, "@billing hello") == {"text": "Mine.", "agent": "support/billing"}
