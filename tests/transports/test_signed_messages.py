"""Signed messages from other programs: which are read, and what the others are answered."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.transport import InboundMessage, InboundRefused
from antiphon.transports.signed_messages import SignedInbound, signed_headers

SECRET, OTHER = "k7Qx-an-unguessable-secret", "another-unguessable-secret"
NOW, SECONDS = "2023-11-14T22:13:20.000000Z", 1_700_000_000
BODY = b'{"text": "Where is it?", "source": "+49301234"}'


def read(headers: dict[str, str], body: bytes = BODY, now: str = NOW) -> InboundMessage:
    return SignedInbound(SECRET).read_inbound(headers, body, now)


def signed(
    body: bytes = BODY, *, message_id: str = "m-1", seconds: int = SECONDS, secret: str = SECRET
) -> dict[str, str]:
    return signed_headers(secret, message_id=message_id, timestamp=seconds, body=body)


def refusal(headers: dict[str, str], body: bytes = BODY) -> tuple[int, str, str]:
    with pytest.raises(InboundRefused) as caught:
        read(headers, body)
    return caught.value.status, caught.value.reason, str(caught.value)


def test_a_signed_message_is_read() -> None:
    assert read(signed()) == InboundMessage("Where is it?", "+49301234", "m-1")
    body = '{"source": "é@x", "text": "ü", "intent": "billing", "id": "m-1"}'.encode()
    assert read(signed(body), body) == InboundMessage("ü", "é@x", "m-1", "billing")


def test_the_signature_is_the_one_that_is_documented() -> None:
    digest = hmac.new(SECRET.encode(), b"m-1.1700000000." + BODY, hashlib.sha256).hexdigest()
    headers = {"ANTIPHON-ID": "m-1", "antiphon-timestamp": "1700000000", "Antiphon-signature": f"v1={digest}"}
    assert read(headers).message_id == "m-1"


@pytest.mark.parametrize("secret", ["é-unguessable-secret-ü", "\udc80" * 20])
def test_any_text_can_be_a_secret(secret: str) -> None:
    headers = signed(secret=secret)
    assert SignedInbound(secret).read_inbound(headers, BODY, NOW).text == "Where is it?"


WRONG = {
    "no headers": {},
    "another secret": signed(secret=OTHER),
    "another body": signed(BODY + b" "),
    "another id": {**signed(), "Antiphon-Id": "m-2"},
    "another time": {**signed(), "Antiphon-Timestamp": str(SECONDS + 1)},
    "no version": {**signed(), "Antiphon-Signature": signed()["Antiphon-Signature"].removeprefix("v1=")},
    "capitals": {**signed(), "Antiphon-Signature": signed()["Antiphon-Signature"].upper()},
    "not ASCII": {**signed(), "Antiphon-Signature": "v1=é\udc80", "Antiphon-Id": "ü\udc80"},
    "no signature": {name: value for name, value in signed().items() if name != "Antiphon-Signature"},
    "one character less": {**signed(), "Antiphon-Signature": signed()["Antiphon-Signature"][:-1]},
}


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG)
def test_a_wrong_signature_says_nothing_more(headers: dict[str, str]) -> None:
    """Also not that the time or the body is wrong."""
    expected = refusal({})
    assert expected[:2] == (401, "bad_signature")
    assert refusal(headers) == expected
    assert refusal(headers, b"no json") == expected


@pytest.mark.parametrize("difference", [-300, -1, 0, 300])
def test_a_clock_may_differ_by_five_minutes(difference: int) -> None:
    assert read(signed(seconds=SECONDS + difference)).message_id == "m-1"


@pytest.mark.parametrize("seconds", [0, SECONDS - 301, SECONDS + 301, -SECONDS, 10**11, 10**13])
def test_an_old_or_early_message_is_refused(seconds: int) -> None:
    status, reason, said = refusal(signed(seconds=seconds))
    assert (status, reason) == (401, "stale")
    assert "at most 300 from this server's clock; sign the request again" in said


@pytest.mark.parametrize("message_id", ["", " ", "a b", "x" * 201, "{m}", "é", "m\n1", "m-1."])
def test_which_ids_are_taken(message_id: str) -> None:
    if message_id == "m-1.":
        assert read(signed(message_id=message_id)).message_id == message_id
    else:
        assert refusal(signed(message_id=message_id))[:2] == (422, "bad_id")


MALFORMED = {
    "no text": (b'{"source": "x"}', 422, "text is missing"),
    "empty text": (b'{"text": "", "source": "x"}', 422, "text"),
    "no source": (b'{"text": "x"}', 422, "source is missing"),
    "empty source": (b'{"text": "x", "source": ""}', 422, "source"),
    "long source": (json.dumps({"text": "x", "source": "x" * 201}).encode(), 422, "source"),
    "number": (b'{"text": 1e300, "source": "x"}', 422, "text"),
    "unknown field": (b'{"text": "x", "source": "x", "to": "y"}', 422, "'to'"),
    "twice": (b'{"text": "x", "source": "x", "text": "y"}', 422, "twice"),
    "NUL": (rb'{"text": "x\u0000", "source": "x"}', 422, "NUL"),
    "NUL in the source": (rb'{"text": "x", "source": "x\u0000"}', 422, "NUL"),
    "another id": (b'{"text": "x", "source": "x", "id": "m-2"}', 422, "the id in the body"),
    "list": (b"[]", 422, "the body"),
    "no json": (b"text=x", 400, "no JSON"),
    "nothing": (b"", 400, "no JSON"),
    "not UTF-8": (b'{"text": "\xff", "source": "x"}', 400, "no JSON"),
    "deep": (b'{"text": ' + b"[" * 100_000, 422, "text"),
}


@pytest.mark.parametrize(("body", "status", "said"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_body_is_explained_to_its_signer(body: bytes, status: int, said: str) -> None:
    found = refusal(signed(body), body)
    assert found[0] == status
    assert said in found[2]


@given(st.binary(max_size=200), st.text(max_size=20), st.text(max_size=20))
def test_nothing_else_is_raised(body: bytes, message_id: str, timestamp: str) -> None:
    headers = {**signed(body), "Antiphon-Id": message_id}
    for each in (headers, signed(body), {**headers, "Antiphon-Timestamp": timestamp}):
        with pytest.raises(InboundRefused):
            read(each, body)


def test_signed_bytes_are_divided_in_one_way_only() -> None:
    """What one message signs is no other message, wherever its id and its time are said to end."""
    inner = BODY.decode()
    body = json.dumps({"text": f"x.{SECONDS}.{inner}", "source": "eve"}).encode()
    whole = f"m-1.{SECONDS}.".encode() + body
    signature = signed(body)["Antiphon-Signature"]
    tried = 0
    for dot in (place for place in range(len(whole)) if whole[place : place + 1] == b"."):
        for end in (place for place in range(dot + 1, len(whole)) if whole[place : place + 1] == b"."):
            message_id, seconds, rest = whole[:dot].decode(), whole[dot + 1 : end].decode(), whole[end + 1 :]
            headers = {"Antiphon-Id": message_id, "Antiphon-Timestamp": seconds, "Antiphon-Signature": signature}
            if rest == body:
                assert read(headers, rest).source == "eve"
                continue
            tried += 1
            assert refusal(headers, rest)[0] in (400, 401, 422)
    assert tried >= 3


def test_a_secret_is_not_shown() -> None:
    assert SECRET not in repr(SignedInbound(SECRET))
