"""Verdicts: whether a review approves, read from its text, which is in English and may be Markdown.

Rule 1: it fails closed. What is not an approval in one of the forms below is none, however close it comes.
Rule 2: a verdict is a whole line: a word of approval and nothing beside it but marks of Markdown, a label, one full
        stop and a sign like a tick. Questions, quotations, lists, crossed-out words and unknown characters are none.
Rule 3: the last line decides, if it stands on its own: not in a block of code or an HTML comment, and below a sentence
        that has ended. A sentence without an end is no obstacle across a blank line, if nothing in it denies or limits.
Rule 4: a denial or a proviso just above takes the verdict away, whichever marks and blank lines are between. That
        there are no faults is no denial.
Rule 5: a text that begins as a JSON object is read as one, whole; each verdict in it must approve.
"""

from __future__ import annotations

import re

from antiphon.core.codec import Malformed, check_unique_keys, parse_json

APPROVALS = ("approved", "approve", "lgtm")
MAX_VERDICT_CHARS = 64
"""A line that is longer is no verdict, and is not searched: `_APPROVAL_LINE` would take long for some."""
_LABEL = r"(?:(?:final|overall|my)[ ])?(?:verdict|decision|recommendation)"
_SIGN = "[\u2705\u2714\U0001f44d\U0001f389\U0001f680]\ufe0f?"
_APPROVAL_LINE = re.compile(
    rf"(?:#{{1,6}}[ ])?[ ]*[*_`]*(?:{_LABEL}[*_`]*[ ]*:[*_` ]*)?(?:{_SIGN}[ ]*)?[*_`]*"
    rf"(?:{'|'.join(APPROVALS)})[*_`]*(?:\.|!{{0,3}})[*_`]*(?:[ ]*{_SIGN})?[*_`]*",
    re.ASCII | re.IGNORECASE,
)
_FENCED_TEXT = re.compile(r"```(?:json|text)?[ ]*\n((?:(?!```).)*?)\n?```", re.ASCII | re.IGNORECASE | re.DOTALL)

# What stands above

_FENCE = re.compile(r"(`{3,}|~{3,})")
_HIDING = re.compile(r"```|~~~|<!--|<(?:del|s|strike)>", re.IGNORECASE)
"""What may quote, hide or cross out the lines below it, once complete blocks of code are left out."""
_INDENTED = (" " * 2, "\t")
"""How a line begins that belongs to a list or a block of code."""
_HEADING = re.compile(rf"#{{1,6}}[ ]|[*_]*{_LABEL}[*_]*\Z", re.ASCII | re.IGNORECASE)
_LIST_ITEM = re.compile(r"(?:[-*+]|[0-9]{1,9}[.)])[ ]")
_QUOTATION = ">"
_CLOSING_MARKS = " *_`~\"'\u201d\u2019)]}\u00bb"
_SENTENCE_END = re.compile(r"(?<![.\u2026])[.!?]\Z")
"""A full stop, but not that of `...`"""
_SENTENCE_BREAK = re.compile(r"[.!?]\s")
_RUNS_ON = tuple("-,;/(.\u2026\u00ad\u2010\u2011\u2012\u2013\u2014")
_MAX_DENIAL_WORDS = 3
_CROSS = "[\u274c\u26d4\U0001f44e\U0001f6ab]"
_WORD = re.compile(rf"[^\W_]+(?:['\u2019][^\W_]+)*|{_CROSS}")
_NEGATION = re.compile(
    r"no|nope|not|never|nor|neither|cannot|hardly|barely|scarcely|without|\w+n['\u2019]t|(?:do|does|is|are|ca|wo|ai)nt|"
    + _CROSS
)
_REFUSAL = re.compile(r"reject(?:ed)?|disapproved?|refused?|declined?|denied|requested|blocked")
_CONDITION = re.compile(
    r"if|unless|until|when|once|before|after|only|be|as|or|but|from|can|could|may|might|must|shall|should|would|will|"
    r"then|almost|nearly|conditionally|says?|claims?|request"
)
_OPEN_END = re.compile(r"(?:^|[ ])(?:(?<!verdict )is|are|was|be|of|to|with|that|the|an?|write)\Z")
_NOT_READY = re.compile(
    r"(?:not|never|cannot|\w+n['\u2019]t)(?:[ ]\S+){0,3}[ ]"
    r"(?:approve(?:[ ]\S+){0,5}|(?:approved|ready)(?:[ ]\S+){0,3}|yet|enough)\Z"
)
_MAX_NOT_READY_WORDS = 10
_PROVISO = re.compile(r"\W*(?:(?:but )?only (?:if|when|once|after)|if|unless|provided|assuming)\b[^,]*\Z")
"""A sentence that is nothing but a condition; a comma begins what is conditional."""
_NO_FAULT = re.compile(
    r"\b(?:(?:no|without)(?: (?:further|more|other|remaining|blocking|major|open|known))? (?:issue|problem|bug|comment|"
    r"concern|objection|note|nit|error|finding|remark|complaint|change|question|blocker)s|not (?:bad|blocking))\b"
)
_FINE = "fine"


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
    *above, last = whole.split("\n")
    if last.startswith(_INDENTED) or not _is_approving_statement(last.strip()):
        return False
    prose = _without_code([line.strip() for line in above])
    return prose is not None and _HIDING.search("\n".join(prose)) is None and _has_ended(prose)


def _is_approving_statement(text: str) -> bool:
    if text.startswith("{"):
        return _is_approving_json(text)
    return len(text) <= MAX_VERDICT_CHARS and _APPROVAL_LINE.fullmatch(text) is not None


def _without_code(lines: list[str]) -> list[str] | None:
    """The lines with a blank one in place of each block of code, or None if a block is not closed."""
    kept: list[str] = []
    opened = ""
    for line in lines:
        fence = _FENCE.match(line)
        if not opened:
            opened = fence[1] if fence else ""
            kept.append("" if fence else line)
        elif line.startswith(opened) and not line.strip(opened[0]):
            opened = ""
    return None if opened else kept


def _has_ended(above: list[str]) -> bool:
    """Whether the line below these stands on its own: it continues none of them, and none of them denies it."""
    with_words = [number for number, line in enumerate(above) if _WORD.search(line)]
    if not with_words:
        return True
    line, is_apart = above[with_words[-1]], with_words[-1] < len(above) - 1
    text = line.rstrip(_CLOSING_MARKS)
    if _is_denial(text) or (line.startswith(_QUOTATION) and not is_apart):
        return False
    if _SENTENCE_END.search(text):
        return True
    is_announced = text.endswith(":") or _HEADING.match(line) is not None
    words = _WORD.findall(_NO_FAULT.sub(_FINE, text.lower()))
    if text.endswith(_RUNS_ON) or not (is_apart or is_announced) or _OPEN_END.search(" ".join(words)):
        return False
    is_item = _LIST_ITEM.match(line) is not None and is_apart
    return is_item or not any(each.fullmatch(word) for word in words for each in (_NEGATION, _REFUSAL, _CONDITION))


def _is_denial(text: str) -> bool:
    """Whether the last sentence of this denies what is below it, like `Not yet.`, or is only a condition of it."""
    sentence = _NO_FAULT.sub(_FINE, _SENTENCE_BREAK.split(text)[-1].lower())
    words = _WORD.findall(sentence)
    negated = [_NEGATION.fullmatch(word) is not None for word in words]
    if len(words) <= _MAX_DENIAL_WORDS and (any(negated) or any(map(_REFUSAL.fullmatch, words))):
        return True
    is_not_ready = _NOT_READY.search(" ".join(words[-_MAX_NOT_READY_WORDS:])) is not None
    return is_not_ready or negated[-1:] == [True] or _PROVISO.match(sentence) is not None


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
