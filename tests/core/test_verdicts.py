"""Whether a text approves: a table of texts, random ones, and the condition that asks."""

from __future__ import annotations

import json
import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import EV_PACKET, EV_TEXT, Approved, Envelope, State, is_approved
from antiphon.core.verdicts import MAX_VERDICT_CHARS
from antiphon.testing.manual_clock import MANUAL_CLOCK_START

APPROVING = [
    "APPROVED",
    "approved",
    "Approve",
    "LGTM",
    "lgtm",
    "  APPROVED  ",
    "\n\nAPPROVED\n\n",
    "APPROVED.",
    "APPROVED!",
    "LGTM!!!",
    "**APPROVED**",
    "*Approved.*",
    "**LGTM**!",
    "`APPROVED`",
    "__approved__",
    "# APPROVED",
    "### **LGTM**",
    "Verdict: APPROVED",
    "verdict:approve",
    "**Verdict:** APPROVED",
    "**Verdict**: **Approved**.",
    "## Verdict: LGTM",
    "VERDICT : APPROVED",
    "All comments are resolved.\nAPPROVED",
    "All comments are resolved\n\nVerdict: APPROVED",
    "Line one.\r\nAPPROVED\r\n",
    "I said NOT APPROVED in the first round. All is mended now.\n\nAPPROVED",
    "NOT APPROVED was my first verdict.\n---\nAPPROVED",
    "# Review\n\n- fine\n- well tested\n\nLGTM",
    "Example:\n```\nx = 1\n```\nAPPROVED",
    "```\nAPPROVED\n```",
    "```text\nVerdict: approved\n```",
    '{"verdict": "approved"}',
    '{"verdict": "LGTM", "comments": ["NOT APPROVED by me last time"]}',
    '{"approved": true}',
    '{\n  "verdict": "Approve",\n  "approved": true\n}',
    '```json\n{"approved": true}\n```',
    'Fine with me.\n{"verdict": "approved"}',
    "All is in order now!\nAPPROVED",
    "My verdict:\nAPPROVED",
    "My verdict:\n\nAPPROVED",
    "## Review\nAPPROVED",
    "- No bugs found\n- Not slow on large inputs\n\nAPPROVED",
    "1. Named well.\n2. Tested well.\nAPPROVED",
    "Tests are good\n\nAPPROVED",
    "Tests are not flaky any more.\nAPPROVED",
    "> Is it ready?\n\nAPPROVED",
    "The call:\n```python\nif not ready:\n    wait()\n```\nAPPROVED",
    "Both:\n~~~\n```\n~~~\nAPPROVED",
    "Longer:\n````md\n```\nx\n```\n````\nAPPROVED",
    "\u201cIt is fine.\u201d\nAPPROVED",
    "***\n\nAPPROVED",
    "No issues found.\n\nAPPROVED",
    "No further comments.\n\nAPPROVED",
    "I see no problems\n\nAPPROVED",
    "- Security: no remaining issues\n\nAPPROVED",
    "Works without errors.\nAPPROVED",
    "Rename `x`. Not blocking.\n\nAPPROVED",
    "Not bad!\nLGTM",
    "The metre is not perfect, but this is fine.\n\nAPPROVED",
    "If you touch this again, rename `x`.\n\nAPPROVED",
    "Bad input is now rejected.\n\nAPPROVED",
    "The cache is not yet used elsewhere.\n\nAPPROVED",
    "## Verdict\n\n**APPROVED**",
    "**Verdict**\nAPPROVED",
    "## Final verdict\nAPPROVED",
    "**Final Verdict:** APPROVED",
    "**Verdict:** **APPROVED**",
    "Overall decision: LGTM",
    "Recommendation: approve",
    "\u2705 APPROVED",
    "**Verdict:** \u2705 **APPROVED**",
    "APPROVED \u2714\ufe0f",
    "LGTM! \U0001f680",
    "LGTM \U0001f44d",
    "First round: \u274c. Now all is right.\n\nAPPROVED",
]
NOT_APPROVING = [
    "",
    " \n\t\n",
    "NOT APPROVED",
    "Not approved.",
    "**NOT** APPROVED",
    "NOT **APPROVED**",
    "not\nAPPROVED",
    "This is NOT\n\n**APPROVED**",
    "I would not call it ready, nor\nAPPROVED",
    "It isn't\nAPPROVED",
    "It isn\u2019t\nAPPROVED",
    "It is hardly...\nAPPROVED",
    "Do not merge until\nAPPROVED",
    "This has to be\nAPPROVED",
    "Answer with NOT APPROVED or\nAPPROVED",
    "This is NOT" + "*" * 100 + "\nAPPROVED",
    "dis-\napproved",
    "approved?",
    "APPROVED ?",
    "APPROVED?!",
    "I have not approved",
    "I have not approved.",
    "I approve",
    "Approved by nobody",
    "APPROVED if you fix the tests",
    "APPROVED, if you fix the tests",
    "APPROVED once the tests pass",
    "APPROVED with changes",
    "APPROVED.\nBut fix the tests first.",
    "APPROVED\nNOT APPROVED",
    "APPROVED:",
    "APPROVED,",
    "APPROVED...",
    "APPROVED\u2026",
    "disapproved",
    "DISAPPROVE",
    "unapproved",
    "approved-ish",
    "APPROVEDD",
    "APPROVE D",
    "A P P R O V E D",
    "NOT_APPROVED",
    "not-approved",
    "!APPROVED",
    "~~APPROVED~~",
    "> APPROVED",
    "- APPROVED",
    "- [ ] APPROVED",
    "1. APPROVED",
    "(APPROVED)",
    '"APPROVED"',
    "\u201cAPPROVED\u201d",
    "| APPROVED |",
    "<del>APPROVED</del>",
    "#APPROVED",
    "\\APPROVED",
    "\u274c APPROVED",
    "\u0410PPROVED",  # a Cyrillic letter
    "APPRO\u200bVED",
    "\uff21\uff30\uff30\uff32\uff2f\uff36\uff25\uff24",
    "NOT\x0bAPPROVED",
    "NOT\u2028APPROVED",
    "NOT\rAPPROVED",
    "Verd\u0131ct: APPROVED",  # an i without its dot
    "Verdict: NOT APPROVED",
    "Verdict: rejected",
    "Verdict:",
    "Verdict: APPROVED?",
    "Not my verdict: APPROVED",
    "Verdict: Verdict: APPROVED",
    "Verdict: APPROVED / REJECTED",
    "APPROVED / NOT APPROVED",
    "rejected",
    "REQUEST CHANGES",
    "ok",
    "yes",
    "true",
    "LGTMN",
    "LGTM modulo tests",
    "Say this when it is ready:\n```\nAPPROVED",
    "```\nNOT APPROVED\n```",
    "```json\nAPPROVED if\n```",
    "```\nNOT\nAPPROVED\n```",
    '{"verdict": "not approved"}',
    '{"verdict": "approved?"}',
    '{"verdict": " approved"}',
    '{"verdict": ["approved"]}',
    '{"verdict": true}',
    '{"verdict": null}',
    '{"approved": false}',
    '{"approved": "true"}',
    '{"approved": "approved"}',
    '{"approved": 1}',
    '{"verdict": "approved", "approved": false}',
    '{"verdict": "rejected", "approved": true}',
    '{"approved": true, "Approved": false}',
    '{"verdict": "rejected", "verdict": "approved"}',
    '{"verdict": "approved"} if you fix the tests',
    '{"verdict": "approved"',
    '{"verdict": "rejected"}\nAPPROVED',
    '{"review": {"verdict": "approved"}}',
    '["approved"]',
    '[{"verdict": "approved"}]',
    "{}",
    '{"not_approved": true}',
    '{"note":\n{"verdict": "approved"}',
    "I do not think that this is\nAPPROVED",
    "I cannot say that it is\n\nAPPROVED",
    "This would be\n\nAPPROVED",
    "It is fine, with one exception;\n\nAPPROVED",
    "To be merged only when a person says:\nAPPROVED",
    "It is not:\n\nAPPROVED",
    "NOT.\n\nAPPROVED",
    "Is it ready? No.\nAPPROVED",
    "Not yet.\n---\nAPPROVED",
    "Never!\n***\nAPPROVED",
    "No longer\n\n\nAPPROVED",
    "## Not approved\n\nAPPROVED",
    "dis-\n\napproved",
    "It is hardly...\n\nAPPROVED",
    "> She wrote that it is fine.\nAPPROVED",
    "- Do this\nAPPROVED",
    "- An answer of the form\n\n  APPROVED",
    "Say this:\n\n    APPROVED",
    "Say this:\n\n\tAPPROVED",
    "A comment. <!--\nAPPROVED",
    "It was this before. <del>\nAPPROVED",
    "Say this.\n~~~\nAPPROVED",
    "Say this.\n````\n```\nAPPROVED",
    "Say this.\n```\n```json\nAPPROVED",
    "Say this.\n```\n````\nand this\n```\nAPPROVED",
    "Say this ``` in code.\nAPPROVED",
    "REJECTED\n\nAPPROVED",
    "Verdict: REJECTED\n\nVerdict: APPROVED",
    "Changes requested.\nAPPROVED",
    "I disapprove.\nAPPROVED",
    "This is not approved.\n\nAPPROVED",
    "I cannot approve this as it is.\nAPPROVED",
    "This change is NOT ready to be merged.\nAPPROVED",
    "I am afraid that this is not good enough.\nAPPROVED",
    "We are not there yet.\n\nAPPROVED",
    "Only if the tests pass.\nAPPROVED",
    "Provided that the tests pass.\n\nAPPROVED",
    "## If the tests pass\nAPPROVED",
    "# What I would say if it were good\nAPPROVED",
    "- It should be\n\nAPPROVED",
    "The opposite of\n\nAPPROVED",
    "Nothing of this is\n\nAPPROVED",
    "You have asked me to end with\n\nAPPROVED",
    "The author claims:\nAPPROVED",
    "Mend the tests first. Then it will be this:\n\nAPPROVED",
    "Almost\n\nAPPROVED",
    "It isnt so\n\nAPPROVED",
    "No tests.\nAPPROVED",
    "No error handling.\nAPPROVED",
    "\u274c\nAPPROVED",
    "\U0001f44e\n\nAPPROVED",
    "APPROVED \u274c",
    "\u2705\u274c APPROVED",
    "APPROVED \u2705 if the tests pass",
    "Not my final verdict: APPROVED",
    "Previous verdict: APPROVED",
    'Here it is.\n```json\n{"verdict": "approved"}\n```',
]


@pytest.mark.parametrize("text", APPROVING)
def test_approves(text: str) -> None:
    assert is_approved(text) is True


@pytest.mark.parametrize("text", NOT_APPROVING)
def test_does_not_approve(text: str) -> None:
    assert is_approved(text) is False


@pytest.mark.parametrize("value", [None, True, 1, b"APPROVED", ["APPROVED"], {"verdict": "approved"}])
def test_what_is_no_text_approves_nothing(value: object) -> None:
    assert is_approved(value) is False


def test_deep_json_is_no_approval() -> None:
    assert not is_approved('{"a":' * 100_000 + '{"approved": true}' + "}" * 100_000)


def test_long_lines_cost_little_and_approve_nothing() -> None:
    """Patterns that could be read in many ways would take hours for these."""
    pieces = ("*", " ", "_*", "`", "verdict:", "verdict: ", "not ", "not,", "be*", "-", "#", "!", ".", "\n")
    for piece in (
        *pieces,
        "```\n",
        "```a\n",
        "~~~",
        "a'",
        "a ",
        "no further ",
        "not ready ",
        "if ",
        "\u274c ",
        "\u2705",
    ):
        assert not is_approved("APPROVED" + piece * 200_000 + "x")
        assert not is_approved(piece * 200_000 + "x\nAPPROVED" + piece * 200_000 + "?")
    assert is_approved("." * 200_000 + "\nAPPROVED")
    assert not is_approved("*" * MAX_VERDICT_CHARS + "APPROVED")


# Random texts

WORDS = ("approved", "approve", "lgtm", "APPROVED", "Approve", "LGTM")
beside = st.text(max_size=12) | st.sampled_from(
    [
        "",
        " ",
        "not ",
        "**",
        ".",
        "!",
        "?",
        "Verdict: ",
        "verdict:",
        "dis",
        "\n",
        "```",
        "- ",
        "# ",
        " if",
        ",",
        "{",
        '"',
        "\u2705",
        "\u274c",
    ]
)


def bare(line: str) -> str:
    """A line without the marks that may stand beside a verdict."""
    return re.sub(r"[*_`#. !\u2705\u2714\ufe0f\U0001f44d\U0001f389\U0001f680]", "", line.strip().lower()).removeprefix(
        "verdict:"
    )


@given(st.lists(beside, max_size=3), st.sampled_from(WORDS), st.lists(beside, max_size=3))
def test_text_around_the_word_approves_only_as_marks(before: list[str], word: str, after: list[str]) -> None:
    """Read in another way: without marks nothing is left of the last line but the word. Fences aside."""
    text = "".join([*before, word, *after])
    lines = [line for line in text.split("\n") if line.strip("` \r\t")]
    assert not is_approved(text) or bare(lines[-1]) in WORDS


letters = st.characters(categories=("L", "N", "P", "S", "M"), exclude_characters="dD")  # "approve" and "d" approve


@given(st.text(alphabet=letters, min_size=1, max_size=10))
def test_letters_beside_the_word_never_approve(extra: str) -> None:
    extra = f"{extra}7" if not any(char.isalnum() for char in extra) else extra
    for word, text in product(WORDS, ("{extra}{word}", "{word}{extra}", "{extra} {word}", "{word} {extra}")):
        said = text.format(extra=extra, word=word)
        assert is_approved(said) is False, said


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert isinstance(is_approved(text), bool)
    assert is_approved(f"{text.strip()} is not approved") is False


verdict_values = st.sampled_from(["approved", "APPROVE", "lgtm", "rejected", "not approved", "", True, False, None, 1])
reviews = st.dictionaries(st.sampled_from(["verdict", "approved", "Verdict", "comments", "score"]), verdict_values)


@given(reviews)
def test_json_approves_only_with_every_verdict(review: dict[str, object]) -> None:
    words = [value for key, value in review.items() if key.lower() == "verdict"]
    flags = [value for key, value in review.items() if key == "approved"]
    approving = all(isinstance(word, str) and word.lower() in WORDS for word in words) and all(
        flag is True for flag in flags
    )
    assert is_approved(json.dumps(review)) is (approving and bool(words or flags))


# The condition


def said(event_type: str, data: dict[str, object]) -> bool:
    envelope = Envelope("e1", "here", "reviewer", None, event_type, data, created_at=MANUAL_CLOCK_START)
    return Approved().evaluate(State(), envelope)


@pytest.mark.parametrize(
    ("event_type", "data", "approved"),
    [
        (EV_PACKET, {"body": "APPROVED"}, True),
        (EV_TEXT, {"text": "Fine.\nAPPROVED"}, True),
        (EV_PACKET, {"body": "NOT APPROVED"}, False),
        (EV_TEXT, {"text": "APPROVED?"}, False),
        (EV_PACKET, {"body": ""}, False),
        (EV_PACKET, {"body": "APPROVED", "routing": {"stopped": "model_calls"}}, False),
        (EV_PACKET, {"body": "APPROVED", "routing": {"stopped": ""}}, False),
        (EV_PACKET, {"body": 7}, False),
        (EV_PACKET, {"text": "APPROVED"}, False),
        ("shop.review", {"body": "APPROVED", "text": "APPROVED"}, False),
        ("antiphon.turn.failed", {"turn": "t", "speaker": "reviewer", "reason": "model_error"}, False),
    ],
)
def test_condition(event_type: str, data: dict[str, object], approved: bool) -> None:
    assert said(event_type, data) is approved
