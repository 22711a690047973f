"""Verdicts: whether a review approves, read from its text.

Rule 1: it fails closed. What is not an approval in one of the forms below is none, however close it comes.
Rule 2: a verdict is a whole line: a word of approval and nothing beside it but marks of Markdown, a label and one full
        stop. Questions, quotations, lists, crossed-out words and unknown characters are no marks.
Rule 3: the last line decides. If it continues a sentence of the line above, or stands in an open block of code, it is
        not a line of its own.
Rule 4: a text that begins as a JSON object is read as one, whole; each verdict in it must approve.
"""

from __future__ import annotations

import re

from antiphon.core.codec import Malformed, check_unique_keys, parse_json

APPROVALS = ("approved", "approve", "lgtm")
FENCE = "```"
_APPROVAL_LINE = re.compile(
    r"(?:#{1,6}[ ])?[ ]*[*_`]*(?:verdict[*_`]*[ ]*:[ ]*[*_`]*[ ]*)?"
    rf"(?:{'|'.join(APPROVALS)})[*_`]*(?:\.|!{{0,3}})[*_`]*",
    re.ASCII | re.IGNORECASE,
)
_FENCED_TEXT = re.compile(r"```(?:json|text)?[ ]*\n((?:(?!```).)*?)\n?```", re.ASCII | re.IGNORECASE | re.DOTALL)
_RUNS_ON = re.compile(
    r"(?:\b(?:not|never|nor|neither|cannot|hardly|but|from|be|if|unless|until|when|once|or)|n['\u2019]t)"
    r"[\s*_`:,]*(?:\u2026|\.{2,})?\Z|\w[-\u00ad\u2010\u2011]\Z",
    re.IGNORECASE,
)
"""What the line above ends in if it continues: a negation, a condition, or a word cut in two."""
MAX_VERDICT_CHARS = 64
"""A line that is longer is no verdict, and is not searched: `_APPROVAL_LINE` would take long for some."""


def is_approved(text: object) -> bool:
    """Whether the last line of this review, or all of it, says that it approves: with `APPROVED`, `APPROVE` or `LGTM`.

    Case, Markdown emphasis, headings, a label `Verdict:` and a final full stop or exclamation mark do not matter. As
    JSON it is `{"verdict": "approved"}` or `{"approved": true}`, with any other fields.
    """
    if not isinstance(text, str):
        return False
    whole = text.strip()
    if whole.startswith("{"):
        return _is_approving_json(whole)
    fenced = _FENCED_TEXT.fullmatch(whole)
    if fenced is not None:
        return _is_approving_statement(fenced[1].strip())
    if whole.count(FENCE) % 2:
        return False
    lines = [line.strip() for line in whole.split("\n") if line.strip()]
    if not lines or not _is_approving_statement(lines[-1]):
        return False
    return len(lines) == 1 or _RUNS_ON.search(lines[-2]) is None


def _is_approving_statement(text: str) -> bool:
    if text.startswith("{"):
        return _is_approving_json(text)
    return len(text) <= MAX_VERDICT_CHARS and _APPROVAL_LINE.fullmatch(text) is not None


def _is_approving_json(text: str) -> bool:
    try:
        data: object = parse_json(text)
        check_unique_keys(text)
    except (Malformed, ValueError):
        return False
    if not isinstance(data, dict):
        return False
    given = [(key.lower(), value) for key, value in data.items() if key.lower() in ("verdict", "approved")]
    return bool(given) and all(_is_approving_field(key, value) for key, value in given)


def _is_approving_field(key: str, value: object) -> bool:
    return value is True if key == "approved" else isinstance(value, str) and value.lower() in APPROVALS
