"""The demonstration in words, for whoever watches it."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.cli.demo import beats, story
from antiphon.cli.demo.beats import AnyBeat
from antiphon.cli.output import Cell, Column, Output, Words
from antiphon.cli.plain import counted, stretches
from antiphon.cli.telling import colour_of

SPOKEN = [Column("", 2), Column("", 3, right=True), Column("", 5), Column("")]
STATED = [Column("", 2), Column("")]
LISTED = [Column("", 2), Column("", 12), Column("")]
NAMES = list(story.EVERYBODY)
SHOWN = 3
"""How many items of the wire are shown before the rest is only counted."""
YES, NO = Cell(" ✓", "bold green"), Cell(" ✗", "bold red")

SCENES = {
    "discussion": "The desk meets. A discussion: each speaks in turn.",
    "consulting": "June telephones the bridge keeper. A consulting: one question, one answer.",
    "conversation": "The wire begins to chatter, into the same file.",
}


class Narrator:
    """Shows beats as a story."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._types: dict[str, str] = {}
        self._items = 0

    def introduce(self, path: str) -> None:
        """Say what is going to be seen."""
        self._out.line(Cell("One evening at a small newspaper", "bold"))
        self._out.line("Everybody is scripted: no key, no network. All is kept in one SQLite file,")
        self._out.command(Cell(path, "dim"))
        self._out.line("A tick and a number: the hub has acknowledged the line, and it is on disk.")

    def tell(self, beat: AnyBeat) -> None:
        """Show one beat."""
        match beat:
            case beats.Began(process=process, act=act):
                self._began(process, act)
            case beats.Opened(channel_id=channel_id, type=kind):
                self._types[channel_id] = kind
                self._out.line()
                self._out.line(Cell(f"   {SCENES[kind]}", "italic"))
            case beats.Killed():
                self._killed(beat)
            case beats.Compared():
                self._compared(beat)
            case beats.Found():
                self._found(beat)
            case _:
                self._spoken(beat)

    def _began(self, process: int, act: str) -> None:
        title = "1  A hub opens the file" if act == "begin" else "3  Another process opens the same file"
        self._out.heading(f"{title} (process {process})")

    def _killed(self, beat: beats.Killed) -> None:
        items = sum(len(found) for key, found in beat.acknowledged.items() if self._types[key] == "conversation")
        self._row(Cell(f"and {counted(items - SHOWN, 'item')} more", "dim"))
        self._out.heading(f"2  kill -9 {beat.process}")
        self._state(f"Killed while it was writing: exit code {beat.exit_code}. Acknowledged until then:", mark=NO)
        self._by_channel({key: stretches(value) for key, value in beat.acknowledged.items()})

    def _compared(self, beat: beats.Compared) -> None:
        there = (
            f"{counted(beat.acknowledged, 'line')} acknowledged: {beat.missing} missing, {beat.doubled} there twice."
        )
        self._state(Cell(there, "bold"), mark=YES if beat.holds else NO)
        if beat.unacknowledged:
            more = (
                f"{counted(beat.unacknowledged, 'more is', 'more are')} on disk: the kill came before anybody was told."
            )
            self._state(Cell(more, "dim"))

    def _found(self, beat: beats.Found) -> None:
        turn = f"it is still {beat.next_speaker}'s turn" if beat.next_speaker else "anybody may speak"
        after = f"after {counted(beat.turn_count, 'turn')} " if beat.turn_count else ""
        self._state(f"The {beat.type} is {beat.status}: {after}{turn}.", mark=YES)

    def _spoken(self, beat: AnyBeat) -> None:
        match beat:
            case beats.Said(speaker=speaker, sequence=sequence, text=text):
                self._row(text, mark=YES, number=sequence, who=speaker)
            case beats.Wired(sequence=sequence, item=item):
                self._items += 1
                if self._items <= SHOWN:
                    self._row(story.wire_item(item), mark=YES, number=sequence, who=story.WIRE)
            case beats.Refused(speaker=speaker, text=text, reason=reason, detail=detail):
                self._out.line()
                self._row(text, mark=NO, who=speaker)
                self._row(Cell(f"refused with {reason!r}:", "red"))
                self._row(Cell(detail, "red"))
            case _:
                self._happened(beat)

    def _happened(self, beat: AnyBeat) -> None:
        match beat:
            case beats.Repeated():
                self._repeated(beat)
            case beats.Delivered(participant=name, sequence=sequence):
                self._row(f"finds June's question, number {sequence}, waiting in his inbox", mark=YES, who=name)
            case beats.Closed(channel_id=channel_id, reason=reason):
                self._row(Cell(f"the {self._types[channel_id]} is closed: {reason}", "dim"))
            case beats.Verified(channels=channels, envelopes=envelopes, problems=problems):
                self._verified(channels, envelopes, problems)
            case _:
                return

    def _repeated(self, beat: beats.Repeated) -> None:
        known = beat.items - beat.added
        told = f"sends {beat.items} items again: {known} known, {beat.added} new, {beat.doubled} there twice"
        self._row(told, mark=NO if beat.doubled else YES, who=story.WIRE)

    def _verified(self, channels: int, envelopes: int, problems: int) -> None:
        size = f"{counted(channels, 'channel')}, {counted(envelopes, 'envelope')}"
        found = "sequences without gaps, hash chain intact" if not problems else counted(problems, "problem")
        self._out.heading("5  The whole file, verified")
        self._state(f"{size}: {found}", mark=NO if problems else YES)

    def _by_channel(self, facts: Mapping[str, str]) -> None:
        for channel_id, fact in facts.items():
            self._out.row(LISTED, ["", Cell(self._types[channel_id], "dim"), fact])

    def _state(self, what: Words, *, mark: Words = "") -> None:
        self._out.row(STATED, [mark, what])

    def _row(self, what: Words, *, mark: Words = "", number: int | None = None, who: str = "") -> None:
        sequence = "" if number is None else str(number)
        self._out.row(SPOKEN, [mark, Cell(sequence, "dim"), Cell(who, colour_of(who, NAMES)), what])
