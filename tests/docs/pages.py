"""The pages a reader meets, and what is in them: pieces of code, links, headings."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
README = ROOT / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted(EXAMPLES.glob("*.md"))]

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
OUTPUT = ("text", "mermaid")


class Snippet(NamedTuple):
    """A piece of Python on a page, the line it begins on, and what the page says it prints."""

    line: int
    code: str
    output: str | None


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def snippets(text: str) -> list[Snippet]:
    """The Python of a page. A block of `text` or `mermaid` right behind one is what that one prints."""
    fences = list(FENCE.finditer(text))
    found: list[Snippet] = []
    for fence, following in zip(fences, [*fences[1:], None], strict=False):
        if fence["language"] == "python":
            line = text[: fence.start("code")].count("\n") + 1
            found.append(Snippet(line, fence["code"], printed(text, fence, following)))
    return found


def printed(text: str, fence: re.Match[str], following: re.Match[str] | None) -> str | None:
    if following is None or following["language"] not in OUTPUT:
        return None
    return None if text[fence.end() : following.start()].strip() else following["code"]


def links(text: str) -> Iterator[str]:
    """Where the prose of a page points to."""
    prose = INLINE.sub("code", FENCE.sub("", text))
    return (match["target"] for match in LINK.finditer(prose))


def anchors(text: str) -> set[str]:
    """The fragments that the headings of a page can be reached by."""
    titles = (match["title"] for match in HEADING.finditer(FENCE.sub("", text)))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
