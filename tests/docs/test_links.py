"""Every link within the project leads somewhere."""

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, links, named, text_of

ELSEWHERE = ("http://", "https://", "mailto:")


def dead_links(page: Path, text: str) -> list[str]:
    inside = [target for target in links(text) if not target.startswith(ELSEWHERE)]
    return [target for target in inside if not resolves(page, text, target)]


def resolves(page: Path, text: str, target: str) -> bool:
    place, _, fragment = target.partition("#")
    path = (page.parent / place).resolve() if place else page
    if not path.is_relative_to(ROOT) or not path.exists():
        return False
    return not fragment or fragment in anchors(text if path == page else text_of(path))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_of_page(page: Path) -> None:
    assert dead_links(page, text_of(page)) == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        targets = (target.partition("#")[0] for target in links(text_of(page)) if not target.startswith(ELSEWHERE))
        ahead.extend((page.parent / target).resolve() for target in targets if target)
    assert [named(page) for page in PAGES if page not in reached] == []


def test_a_dead_link_is_noticed() -> None:
    near = "[a](#two-words) [b](#three) [c](LICENSE) [d](gone.md) [e](../x)"
    text = f"# Two Words\n{near} `[f](code)` [g](https://x.org) [`h`](lost)"
    assert dead_links(ROOT / "README.md", text) == ["#three", "gone.md", "../x", "lost"]
