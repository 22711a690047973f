"""Secrets are hidden in every form that they take on their way into a text."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.core.redaction import MIN_SECRET_CHARS, REDACTED_MARK, Redactor

SECRETS = ["Zm9vYmFy-not-base64", 'pass/word "with" +&=% and é', "0123456789abcdef" * 4, "swordfish"]


def written(secret: str, before: str, behind: str) -> list[str]:
    """A text around a secret, in every form."""
    whole = f"{before}{secret}{behind}"
    forms = [whole, quote(whole), quote(whole, safe=""), quote_plus(whole), json.dumps(whole), repr(whole)]
    forms.append(json.dumps(whole, ensure_ascii=False))
    forms += [f"{before}{encode(whole.encode()).decode()}" for encode in (b64encode, urlsafe_b64encode)]
    return forms


def traces(secret: str) -> list[str]:
    """What of a secret must not be left: its middle, in every form."""
    raw = secret.encode()
    found = [secret[2:-1], quote(secret)[2:-1], quote_plus(secret)[2:-1], json.dumps(secret)[3:-2]]
    for skipped in range(3):
        core = raw[skipped : skipped + (len(raw) - skipped) // 3 * 3]
        found += [b64encode(core).decode()[4:-4], urlsafe_b64encode(core).decode()[4:-4]]
    return [each for each in found if len(each) >= 4]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("before", ["", "x", "xy", "user:", "the key is "])
def test_a_known_secret_is_hidden_in_every_form(secret: str, before: str) -> None:
    hide = Redactor([secret])
    for text in written(secret, before, " is wrong"):
        shown = hide(text)
        assert REDACTED_MARK in shown, text
        assert [trace for trace in traces(secret) if trace in shown] == [], (text, shown)


@given(secret=st.text(st.characters(codec="utf-8"), min_size=MIN_SECRET_CHARS, max_size=60), before=st.text(max_size=5))
@example(secret="sk-" + "A" * 40, before="Bearer ")
def test_whatever_the_secret_it_is_hidden(secret: str, before: str) -> None:
    hide = Redactor([secret])
    text = f"{before}{secret}"
    assert secret not in hide(text)
    assert hide(hide(text)) == hide(text)


@pytest.mark.parametrize("kept", [MIN_SECRET_CHARS, 20, 63])
def test_of_a_text_that_is_cut_short_no_beginning_is_left(kept: int) -> None:
    secret = "0123456789abcdef" * 4
    for end in ("", "…", "...", "… and more"):
        assert Redactor([secret])(f"the key {secret[:kept]}{end}") == f"the key {REDACTED_MARK}{end}"
    assert Redactor([secret])(f"{secret[:7]}…") == f"{secret[:7]}…"


@pytest.mark.parametrize(
    "credential",
    [
        "sk-proj-abcdefghijklmnop1234",
        "Authorization: Bearer abc.DEF-123",
        "Authorization: Basic dXNlcjpwYXNz",
        "https://example.org/?api_key=a1b2c3d4e5&x=1",
        "ak_0123456789ab_" + "A" * 43,
        "at_" + "B" * 43,
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_" + "c" * 36,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    ],
)
def test_what_looks_like_a_credential_is_hidden(credential: str) -> None:
    shown = Redactor()(f"it said {credential} twice")
    assert REDACTED_MARK in shown
    assert credential not in shown
    assert shown.endswith(" twice")


@pytest.mark.parametrize(
    "harmless",
    [
        "Bearer authentication is required",
        "the task-list of the risk-team",
        "token budget exceeded: 4000 of 3000",
        "at_least_one_of_these_is_missing",
        "KeyError: 'basic configuration'",
    ],
)
def test_ordinary_words_stay(harmless: str) -> None:
    assert Redactor(["a-secret-of-somebody"])(harmless) == harmless


def test_a_secret_that_is_removed_is_shown_again() -> None:
    hide = Redactor(["first-secret", "second-secret"])
    hide.remove("first-secret")
    assert hide("first-secret second-secret") == f"first-secret {REDACTED_MARK}"
