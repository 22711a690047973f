"""What a conversation looks like, piece by piece."""

import pytest

from antiphon import AIMessageEvent, TokenEvent
from antiphon.cli.console_output import PlainOutput
from antiphon.cli.event_display import TextDisplay


@pytest.mark.parametrize(
    ("pieces", "whole", "shown"),
    [
        (["Good ", "morning."], "Good morning.", "shop: Good morning.\n"),
        (["Good ", "morning. "], "Good morning.", "shop: Good morning. \n"),
        ([" ", "Good morning."], "Good morning.", "shop: Good morning.\n"),
        ([" "], "Good morning.", "shop: Good morning.\n"),
        ([], "Good morning.", "shop: Good morning.\n"),
        (["Goo"], "Good morning.", "shop: Goo\nshop: Good morning.\n"),
    ],
)
def test_what_came_in_pieces_is_not_shown_again(
    pieces: list[str], whole: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show = TextDisplay(PlainOutput(), ["shop"])
    for piece in pieces:
        show.tell(TokenEvent("shop", piece))
    show.tell(AIMessageEvent("shop", whole))
    assert capsys.readouterr().out == shown
