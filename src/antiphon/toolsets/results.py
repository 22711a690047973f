"""What a server's tool returned, as a model reads it.

Rule 1: text is text, and structured content is JSON where there is no text.
Rule 2: no bytes. An image, a sound or a file is named, with its kind and its size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from antiphon.toolsets.failures import ToolFailed

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock


def text_of(result: CallToolResult) -> str:
    """The result as text; `ToolFailed` with that text if the server calls it an error."""
    parts = [_part(block) for block in result.content]
    if result.structured_content is not None and not any(block.type == "text" for block in result.content):
        parts.insert(0, msgspec.json.encode(result.structured_content).decode())
    text = "\n".join(parts)
    if result.is_error:
        raise ToolFailed(text or "the tool says that it failed, and not why")
    return text


def _part(block: ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}: {block.mime_type}, {_size(block.data)} bytes]"
        case "resource_link":
            return f"[resource: {block.uri}, {block.mime_type or 'of unknown type'}, not included]"
        case "resource":
            held = block.resource
            kind = held.mime_type or "of unknown type"
            if hasattr(held, "text"):
                return f"[resource: {held.uri}, {kind}]\n{held.text}"
            return f"[resource: {held.uri}, {kind}, {_size(held.blob)} bytes]"


def _size(encoded: str) -> int:
    """How many bytes a text in base64 stands for."""
    return len(encoded) * 3 // 4 - encoded[-2:].count("=")
