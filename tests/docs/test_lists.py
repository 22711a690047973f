"""What the pages list is all there is: errors, reasons, public names, decision records."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import antiphon
from antiphon import testing
from antiphon.guards.standard_guards import EXPECTATION_CLOCKS, EXPECTATION_HANDLERS
from antiphon.orchestration.catalogue import BUILT_IN_ADAPTERS
from tests.docs.pages import DOCS, ROOT, text_of

SOURCE = ROOT / "src" / "antiphon"
REFUSALS = {"Deny", "Denied", "Malformed"}
ADR_LINES = 60


def code_in(page: Path) -> str:
    return "\n".join(re.findall(r"`+([^`]+)`+", text_of(page)))


def missing(names: Iterator[str] | list[str], page: str) -> list[str]:
    mentioned = code_in(DOCS / page)
    return sorted({name for name in names if not re.search(rf"\b{re.escape(name)}\b", mentioned)})


def reasons() -> Iterator[str]:
    """Every word that is given as the reason of a refusal anywhere in the package."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(reason)), *_]) if name in REFUSALS:
                    yield reason


def test_every_reason_of_a_refusal_is_explained() -> None:
    assert len(set(reasons())) > 20
    assert missing(reasons(), "errors.md") == []


def close_reasons() -> Iterator[str]:
    """Every reason, or its fixed beginning, for which the hub or a built-in adapter closes a channel."""
    for path in [SOURCE / "core" / "step.py", SOURCE / "orchestration" / "adapters.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="Close" | "_closing_draft"), args=[ast.Constant(value=str(reason)), *_]):
                    yield reason
                case ast.Call(
                    func=ast.Name(id="Close" | "_closing_draft"),
                    args=[ast.JoinedStr(values=[ast.Constant(value=str(reason)), *_]), *_],
                ):
                    yield reason


def test_every_reason_of_a_closing_is_explained() -> None:
    assert len(set(close_reasons())) >= 4
    text = text_of(DOCS / "channels.md")
    assert [reason for reason in close_reasons() if f"`{reason}" not in text] == []


def test_every_error_is_explained() -> None:
    errors = [name for name in antiphon.__all__ if is_error(getattr(antiphon, name))]
    assert len(errors) > 15
    assert missing(errors, "errors.md") == []
    drawn = text_of(DOCS / "errors.md").partition("```")[2].partition("```")[0]
    assert [name for name in errors if not re.search(rf"\b{name}\b", drawn)] == []


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, antiphon.AntiphonError)


def test_every_public_name_is_in_the_reference() -> None:
    assert missing(antiphon.__all__, "reference.md") == []
    assert missing(testing.__all__, "reference.md") == []


def test_every_test_tool_is_explained() -> None:
    assert missing(testing.__all__, "testing.md") == []


def test_every_expectation_handler_and_channel_type_is_explained() -> None:
    assert missing([*EXPECTATION_CLOCKS, *EXPECTATION_HANDLERS], "expectations.md") == []
    assert missing(list(BUILT_IN_ADAPTERS), "channels.md") == []


def test_decision_records_have_their_parts() -> None:
    records = sorted((DOCS / "adr").glob("*.md"))
    assert [record.name[:4] for record in records] == [f"{number:04}" for number in range(1, len(records) + 1)]
    for record in records:
        text = text_of(record)
        assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequence"], record.name
        assert len(text.splitlines()) <= ADR_LINES, record.name
