"""Server-sent events, however they are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from antiphon.models.provider_http import OverlongEvent, SseDecoder, SseEvent


def events(*chunks: bytes, largest: int = 1000) -> list[SseEvent]:
    reader = SseDecoder(largest)
    return [event for chunk in chunks for event in reader.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [SseEvent(b"", b"a")]),
        (b"data:a\n\n", [SseEvent(b"", b"a")]),
        (b"data:  a\n\n", [SseEvent(b"", b" a")]),
        (b"data: a\r\n\r\n", [SseEvent(b"", b"a")]),
        (b"data: a\r\rdata: b\n\n", [SseEvent(b"", b"a"), SseEvent(b"", b"b")]),
        (b"data: a\ndata: b\n\n", [SseEvent(b"", b"a\nb")]),
        (b"data: a\r\ndata: b\r\n\r\n", [SseEvent(b"", b"a\nb")]),
        (b"event: x\r\ndata: a\rdata: b\r\r", [SseEvent(b"x", b"a\nb")]),
        (b"data\n\n", [SseEvent(b"", b"")]),
        (b"event: ping\ndata: {}\n\ndata: x\n\n", [SseEvent(b"ping", b"{}"), SseEvent(b"", b"x")]),
        (b": a comment\n\n:\ndata: a\nid: 7\nretry: 9\nnonsense\n\n", [SseEvent(b"", b"a")]),
        (b"event: nothing\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", [SseEvent(b"", b"a")]),
        (b"data: a\n", []),
        (b"data: a", []),
        ("data: Zürich 🦉\n\n".encode(), [SseEvent(b"", "Zürich 🦉".encode())]),
        (b"", []),
    ],
)
def test_reads(stream: bytes, expected: list[SseEvent]) -> None:
    assert events(stream) == expected
    assert events(*(stream[at : at + 1] for at in range(len(stream)))) == expected


LINES = st.lists(
    st.tuples(
        st.sampled_from(["data: ", "data: ", "data:", "event: ", ": ", "data", "other: ", ""]),
        st.text(st.characters(exclude_characters="\r\n\x00", codec="utf-8"), max_size=6),
        st.sampled_from(["\n", "\r\n", "\r"]),
    ),
    max_size=12,
).map(lambda lines: "".join(field + (text if field else "") + end for field, text, end in lines).encode())
STREAMS = LINES | st.binary(max_size=60).map(lambda data: data.replace(b"\x00", b"\n"))


@given(STREAMS, st.lists(st.integers(0, 200), max_size=8))
def test_chunks_make_no_difference(stream: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[start:end] for start, end in itertools.pairwise(places)]
    assert b"".join(chunks) == stream
    assert events(*chunks) == events(stream)
    assert events(*(stream[at : at + 1] for at in range(len(stream)))) == events(stream)


@given(LINES)
def test_agrees_with_another_reader(stream: bytes) -> None:
    if any(character in stream.decode() for character in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\ufeff"):
        return  # ends of lines, for the other one
    theirs = [(event.event or "", event.data) for event in SSEDecoder().iter_bytes(iter([stream])) if event.data]
    assert [(event.kind.decode(), event.data.decode()) for event in events(stream) if event.data] == theirs


@pytest.mark.parametrize(
    "stream",
    [b"data: " + b"a" * 100, b"data: " + b"a" * 100 + b"\n\n", b"data: aaaaaaaaaa\n" * 10, b":" + b"a" * 100 + b"\n"],
)
def test_what_is_too_large_is_not_kept(stream: bytes) -> None:
    with pytest.raises(OverlongEvent, match="more than 50 bytes"):
        events(stream, largest=50)
    assert events(b"data: aaaaaaaaaa\n\n" * 100, largest=50) == [SseEvent(b"", b"a" * 10)] * 100
