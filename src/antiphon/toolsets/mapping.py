"""A server's tools as an agent has them: which, under which names, how they are described, and what they return.

Rule 1: descriptions and schemas are the server's, made safe for models and screens. Invisible characters are removed:
        control characters, terminal sequences, marks of text direction, zero-width and tag characters.
Rule 2: everything has a limit. Descriptions are cut, with a mark; a schema that is too large is an error.
Rule 3: cleaning a text has the same result wherever it stands, so that a reference still finds its definition.
Rule 4: a valid name stays as it is. Any other is made valid, the same way every time, and unique.
Rule 5: a call may be repeated only if the server, or the user, declares it idempotent.
Rule 6: a result is text, or structured content as JSON if there is no text. An image, a sound or a file is named with
        its type and size; its bytes are left out.
Rule 7: errors are raised inside a tool, so that the model reads them; they end no turn. A call that may have taken
        effect says so.
"""

from __future__ import annotations

import hashlib
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast

import msgspec

from antiphon.agents.messages import ToolSpec
from antiphon.agents.tool import Tool, tool_from_schema
from antiphon.core.codec import Malformed, check_json, to_json
from antiphon.core.envelope import Json
from antiphon.core.errors import AntiphonError, UsageError
from antiphon.core.text import describe

if TYPE_CHECKING:
    import mcp_types
    from mcp_types import CallToolResult, ContentBlock

MAYBE_DONE = "the call may have taken effect all the same"


class ToolFailed(AntiphonError):
    """A server's tool failed, or its result is unknown. The message says which."""


class RequestUnsent(ToolFailed):
    """The connection was closed before the request was sent. It can be retried on another one."""


MAX_DESCRIPTION_BYTES = 4 * 1024
MAX_PARAMETER_DESCRIPTION_BYTES = 1024
MAX_SCHEMA_BYTES = 64 * 1024
"""Of a tool's parameters, once its descriptions are cut."""
MAX_INSTRUCTIONS_BYTES = 16 * 1024
CUT_MARK = " … (cut)"

TERMINAL_SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, and where the cursor goes
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)"  # titles, links and the like
    "|\x1b[ -/]*[0-~]"
)
HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs"})
HIDDEN_CHARS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Characters of other categories that show nothing."""
SELECTOR_RANGES = ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0000, 0xE0FFF))
"""Ranges of variation selectors and tags, in which any text can be hidden."""
LINE_END_PATTERN = re.compile("\r\n?|[\x85\u2028\u2029]")
DESCRIBING_KEYWORDS = frozenset({"description", "title", "$comment"})
NAMING_KEYWORDS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values are schemas by name."""


def clean_text(text: str, most: int | None = None) -> str:
    """The text without invisible characters, cut to `most` bytes. Line ends and tabs stay."""
    if not text.isprintable():
        plain = LINE_END_PATTERN.sub("\n", TERMINAL_SEQUENCE.sub("", text))
        text = "".join(character for character in plain if character in "\n\t" or not _is_hidden(character))
    elif not text.isascii():
        text = "".join(character for character in text if not _is_hidden(character))
    return text if most is None else _cut_text(text, most)


def clean_schema(schema: Json) -> Json:
    """The schema with its texts cleaned and its descriptions cut; `Malformed` if it is no JSON, or too large."""
    check_json(schema)
    made = cast("Json", _clean_schema_part(schema))
    size = len(to_json(made))
    if size > MAX_SCHEMA_BYTES:
        raise Malformed("too_large", f"it has {size} bytes; the limit is {MAX_SCHEMA_BYTES}")
    return made


def _clean_schema_part(part: object, *, named: bool = False) -> object:
    """A schema, or if `named` a dict of schemas by name."""
    match part:
        case dict():
            return {clean_text(key): _clean_keyword(key, value, named=named) for key, value in part.items()}
        case list():
            return [_clean_schema_part(each) for each in part]
        case str():
            return clean_text(part)
        case _:
            return part


def _clean_keyword(key: str, value: object, *, named: bool) -> object:
    if not named and key in DESCRIBING_KEYWORDS and isinstance(value, str):
        return clean_text(value, MAX_PARAMETER_DESCRIPTION_BYTES)
    return _clean_schema_part(value, named=not named and key in NAMING_KEYWORDS)


def _is_hidden(character: str) -> bool:
    number = ord(character)
    return (
        unicodedata.category(character) in HIDDEN_CATEGORIES
        or character in HIDDEN_CHARS
        or any(first <= number <= last for first, last in SELECTOR_RANGES)
    )


def _cut_text(text: str, most: int) -> str:
    data = text.encode()
    if len(data) <= most:
        return text
    return data[: most - len(CUT_MARK.encode())].decode(errors="ignore").rstrip() + CUT_MARK


logger = logging.getLogger("antiphon.mcp")

McpIdempotency = Literal["natural", "unsafe"]
"""What a second call does: the same again, or harm. MCP has no idempotency keys."""

MAX_TOOL_NAME_CHARS = 64
NAME_MARK_CHARS = 8
UNFIT_CHARS = re.compile(r"[^A-Za-z0-9_-]")

CallServerTool = Callable[[str, dict[str, object]], Awaitable[str]]
"""Calls the server's tool of this name with these arguments."""


class ToolSelection(msgspec.Struct, frozen=True):
    """Which of a server's tools are used, and how."""

    prefix: str = ""
    only: Sequence[str] | None = None
    without: Sequence[str] = ()
    idempotency: McpIdempotency | Mapping[str, McpIdempotency] | None = None


def map_tools(
    offer: Iterable[mcp_types.Tool], choice: ToolSelection, *, call: CallServerTool, label: str
) -> tuple[Tool, ...]:
    """The tools that are chosen from an offer; `UsageError` if something is chosen that is not offered."""
    offered: dict[str, mcp_types.Tool] = {}
    for each in offer:
        if each.name in offered:
            logger.warning("%s offers two tools called %r; the first is used", label, each.name)
        offered.setdefault(each.name, each)
    overridden = choice.idempotency if isinstance(choice.idempotency, Mapping) else ()
    strange = sorted({*(choice.only or ()), *choice.without, *overridden} - offered.keys())
    if strange:
        known = ", ".join(offered) or "none"
        raise UsageError(f"{label} has no tool {describe(strange[0])}; there are: {known}")
    wanted = offered.keys() if choice.only is None else choice.only
    chosen = [each for name, each in offered.items() if name in wanted and name not in choice.without]
    names = fit_names([each.name for each in chosen], choice.prefix)
    return tuple(_map_tool(each, names[each.name], choice, call=call, label=label) for each in chosen)


def fit_names(names: Sequence[str], prefix: str = "") -> dict[str, str]:
    """The name of each tool for models. It depends on the names alone, not on their order."""
    whole = {name: f"{prefix}_{name}" if prefix else name for name in names}
    plain = {name: UNFIT_CHARS.sub("_", text) for name, text in whole.items()}
    count = Counter(plain.values())
    fit = {
        name: text
        for name, text in plain.items()
        if 0 < len(text) <= MAX_TOOL_NAME_CHARS and (text == whole[name] or count[text] == 1)
    }
    taken = set(fit.values())
    for name in sorted(whole.keys() - fit.keys()):
        fit[name] = _mark_name(plain[name], whole[name], taken)
        taken.add(fit[name])
    return fit


def _mark_name(plain: str, whole: str, taken: set[str]) -> str:
    """The name with a digest that distinguishes it from similar ones."""
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
    marks = (digest[start : start + NAME_MARK_CHARS] for start in range(len(digest) - NAME_MARK_CHARS))
    candidates = (f"{(plain or 'tool')[: MAX_TOOL_NAME_CHARS - NAME_MARK_CHARS - 1]}_{mark}" for mark in marks)
    return next(each for each in candidates if each not in taken)


def _idempotency_of(offered: mcp_types.Tool, choice: ToolSelection) -> McpIdempotency:
    given = choice.idempotency
    override = given.get(offered.name) if isinstance(given, Mapping) else given
    if override is not None:
        return override
    hints = offered.annotations
    harmless = hints is not None and (hints.read_only_hint is True or hints.idempotent_hint is True)
    return "natural" if harmless else "unsafe"


def _tool_spec(offered: mcp_types.Tool, name: str, label: str) -> ToolSpec:
    """The tool as sent to a model; `UsageError` if its schema is too large, or cannot be sent."""
    description = clean_text(offered.description or offered.title or "", MAX_DESCRIPTION_BYTES)
    try:
        return ToolSpec(name, description, clean_schema(offered.input_schema))
    except Malformed as error:
        advice = f"leave the tool out with without=[{describe(offered.name)}]"
        raise UsageError(f"{label}: the schema of its tool {describe(offered.name)}: {error}; {advice}") from error


def _map_tool(offered: mcp_types.Tool, name: str, choice: ToolSelection, *, call: CallServerTool, label: str) -> Tool:
    async def called(**arguments: object) -> str:
        return await call(offered.name, arguments)

    # The timeout is MCPServer's own: a late answer is an error for the model to read, not a call in doubt.
    spec, idempotency = _tool_spec(offered, name, label), _idempotency_of(offered, choice)
    return tool_from_schema(called, spec, idempotency=idempotency, timeout=None, source=label)


def result_as_text(result: CallToolResult) -> str:
    """The result as text; `ToolFailed` with that text if the server reports an error."""
    parts = [_block_as_text(block) for block in result.content]
    if result.structured_content is not None and not any(block.type == "text" for block in result.content):
        parts.insert(0, msgspec.json.encode(result.structured_content).decode())
    text = "\n".join(parts)
    if result.is_error:
        raise ToolFailed(text or "the tool says that it failed, and not why")
    return text


def _block_as_text(block: ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}: {block.mime_type}, {_decoded_size(block.data)} bytes]"
        case "resource_link":
            return f"[resource: {block.uri}, {block.mime_type or 'of unknown type'}, not included]"
        case "resource":
            held = block.resource
            kind = held.mime_type or "of unknown type"
            if hasattr(held, "text"):
                return f"[resource: {held.uri}, {kind}]\n{held.text}"
            return f"[resource: {held.uri}, {kind}, {_decoded_size(held.blob)} bytes]"


def _decoded_size(encoded: str) -> int:
    """How many bytes a text in base64 stands for."""
    return len(encoded) * 3 // 4 - encoded[-2:].count("=")
