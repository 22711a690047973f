"""A chat completion as a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from antiphon.core.codec import to_json
from antiphon.runtime.turn_events import NumberedEvent
from antiphon.server.chat_protocol import ChatChunk, ChunkWriter
from antiphon.server.event_streams import public_event
from antiphon.server.problems import CHAT_PATH, error_response

DONE_FRAME = b"data: [DONE]\n\n"


async def chat_frames(
    events: AsyncGenerator[NumberedEvent, None], writer: ChunkWriter, *, closing: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    """The answer as frames. An error on the way is the last frame."""
    try:
        yield _chunk_frame(writer.begin())
        async for sequence, event in events:
            for chunk in () if event is None else writer.of(sequence, public_event(event)):
                yield _chunk_frame(chunk)
    except Exception as error:
        yield b"data: " + bytes(error_response(error, path=CHAT_PATH, closing=closing.is_set()).body) + b"\n\n"
    else:
        yield DONE_FRAME
    finally:
        await events.aclose()


def _chunk_frame(chunk: ChatChunk) -> bytes:
    return b"data: " + to_json(chunk) + b"\n\n"
