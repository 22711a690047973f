"""The demonstration as text."""

from __future__ import annotations

from collections.abc import Mapping

import beats
import story
from beats import AnyBeat

from antiphon.agents.intents import TRANSFER_PREFIX
from antiphon.cli.console_output import CommandOutput
from antiphon.cli.table_layout import Cell, CellLike, Column, number_ranges, participant_colour, pluralize

SPOKEN = [Column("", 2), Column("", 3, right=True), Column("", 5), Column("")]
STATED = [Column("", 2), Column("")]
LISTED = [Column("", 2), Column("", 20), Column("")]
NAMES = list(story.EVERYBODY)
SHORT = 8
"""How much of a key is shown."""
SHOWN = 3
"""How many items of the wire are shown before the rest is only counted."""
YES, NO = Cell(" ✓", "bold green"), Cell(" ✗", "bold red")

SCENES = {
    "discussion": "The desk meets. A discussion: each speaks in turn.",
    "consulting": "June telephones the bridge keeper. A consulting: one question, one answer.",
    story.CLERK: "Mara sends for the clerk, an agent. Each call of its turn goes into the log.",
    "conversation": "Meanwhile the wire begins to chatter, into the same file.",
}


class Narrator:
    """Shows beats as a story."""

    def __init__(self, out: CommandOutput) -> None:
        self._out = out
        self._types: dict[str, str] = {}
        self._labels: dict[str, str] = {}
        self._items = 0
        self._key = ""
        self._turn_goes_on = False

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
            case beats.Opened():
                self._opened(beat)
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

    def _opened(self, beat: beats.Opened) -> None:
        guest = beat.participants[-1]
        self._types[beat.channel_id] = beat.type
        self._labels[beat.channel_id] = f"consulting with {guest}" if beat.type == "consulting" else beat.type
        self._out.line()
        self._out.line(Cell(f"   {SCENES.get(guest) or SCENES[beat.type]}", "italic"))

    def _killed(self, beat: beats.Killed) -> None:
        items = sum(len(found) for key, found in beat.acknowledged.items() if self._types[key] == "conversation")
        self._row(Cell(f"and {pluralize(items - SHOWN, 'item')} more", "dim"))
        self._out.heading(f"2  kill -9 {beat.process}")
        self._state(f"Killed while it was writing, and before the bank's answer: exit code {beat.exit_code}.", mark=NO)
        self._state("Acknowledged until then:")
        self._by_channel({key: number_ranges(value) for key, value in beat.acknowledged.items()})

    def _compared(self, beat: beats.Compared) -> None:
        there = (
            f"{pluralize(beat.acknowledged, 'line')} acknowledged: {beat.missing} missing, {beat.doubled} there twice."
        )
        self._state(Cell(there, "bold"), mark=YES if beat.holds else NO)
        if beat.unacknowledged:
            count = pluralize(beat.unacknowledged, "more is", "more are")
            more = f"{count} on disk: the kill came before anybody was told."
            self._state(Cell(more, "dim"))

    def _found(self, beat: beats.Found) -> None:
        turn = f"it is still {beat.next_speaker}'s turn" if beat.next_speaker else "anybody may speak"
        after = f"after {pluralize(beat.turn_count, 'turn')} " if beat.turn_count else ""
        self._state(f"The {self._labels[beat.channel_id]} is {beat.status}: {after}{turn}.", mark=YES)

    def _spoken(self, beat: AnyBeat) -> None:
        match beat:
            case beats.Said(speaker=speaker, sequence=sequence, text=text):
                self._row(text, mark=YES, number=sequence, who=speaker)
            case beats.Wired(sequence=sequence, item=item):
                self._items += 1
                if self._items <= SHOWN:
                    self._row(story.wire_item(item), mark=YES, number=sequence, who=story.WIRE)
            case beats.Refused(speaker=speaker, text=text, reason=reason, detail=detail):
                self._out.heading("5  And so does the newsroom")
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
                self._row(Cell(f"the {self._labels[channel_id]} is closed: {reason}", "dim"))
            case beats.Commanded() | beats.Heard():
                self._visited(beat)
            case beats.Verified(channels=channels, envelopes=envelopes, problems=problems):
                self._verified(channels, envelopes, problems)
            case _:
                self._worked(beat)

    def _visited(self, beat: beats.Commanded | beats.Heard) -> None:
        """A customer at the counter."""
        match beat:
            case beats.Commanded(name="run", file=file):
                self._out.heading(f"6  The counter opens: antiphon run {file}")
                self._out.line(Cell("   A team of two agents, at a terminal. Who hands over is shown.", "italic"))
            case beats.Commanded(file=file):
                self._out.heading(f"7  The same conversation over HTTP: antiphon serve {file}")
                self._out.line(Cell(f"   POST /agents/{story.COUNTER}/stream_invoke", "italic"))
            case beats.Heard(event="tool_usage", agent=agent, tool=tool):
                target = tool.removeprefix(TRANSFER_PREFIX)
                self._row(f"→ {target}" if target != tool else f"calls {tool}", who=agent)
            case beats.Heard(event="tool_response", tool=tool, text=text) if not tool.startswith(TRANSFER_PREFIX):
                self._row(Cell(f"{tool} gave {text}", "dim"))
            case beats.Heard(event="user_message", text=text):
                self._row(text, who=story.CALLER)
            case beats.Heard(event="ai_message", agent=agent, text=text):
                self._row(text, mark=YES, who=agent)
            case _:
                return

    def _worked(self, beat: AnyBeat) -> None:
        """The clerk's turn."""
        match beat:
            case beats.Called(agent=agent, name="model", wants=wants):
                self._row(f"asks its model, which {f'wants {wants}' if wants else 'has the answer'}", who=agent)
            case beats.Called(agent=agent, name=name, answer=answer):
                self._row(f"calls {name}: {answer}", who=agent)
            case beats.Pays():
                self._pays(beat)
            case beats.Booked(known=known):
                told = "knows that key, and books nothing twice" if known else "books it, and is slow to say so"
                self._row(told, who=story.BANK)
            case beats.Recalled():
                self._recalled(beat)
            case beats.Accounted():
                self._accounted(beat)
            case _:
                return

    def _pays(self, beat: beats.Pays) -> None:
        told = f"{beat.shillings} shillings to {beat.payee}, under the key {beat.key[:SHORT]}"
        if beat.key == self._key:
            told = f"the same again, under the same key {beat.key[:SHORT]}"
        self._key = beat.key
        self._row(f"calls pay: {told}", who=beat.agent)

    def _recalled(self, beat: beats.Recalled) -> None:
        if not self._turn_goes_on:
            self._out.heading("4  The clerk's turn goes on")
            self._out.line(Cell("   What its journal has an answer to is read there. The rest is called.", "italic"))
        self._turn_goes_on = True
        told = f"its model wants {beat.wants}" if beat.wants else f"{beat.name} gave {beat.answer}"
        if beat.in_flight:
            told = f"{beat.name} has left, under the key {beat.key[:SHORT]}; no answer"
        self._row(f"reads: {told}", mark=YES, number=beat.sequence, who=beat.agent)

    def _accounted(self, beat: beats.Accounted) -> None:
        mark = YES if beat.holds else NO
        calls = f"{beat.read} read from the journal, {beat.again} made again under its key, {beat.anew} new"
        self._state(Cell(f"{pluralize(beat.calls, 'call')}: {calls}.", "bold"), mark=mark)
        asked = "twice" if beat.payments == 2 else pluralize(beat.payments, "time")
        entries = pluralize(beat.entries, "entry", "entries")
        self._state(Cell(f"The bank was asked {asked}. Its ledger holds {entries}.", "bold"), mark=mark)

    def _repeated(self, beat: beats.Repeated) -> None:
        known = beat.items - beat.added
        told = f"sends {beat.items} items again: {known} known, {beat.added} new, {beat.doubled} there twice"
        self._row(told, mark=NO if beat.doubled else YES, who=story.WIRE)

    def _verified(self, channels: int, envelopes: int, problems: int) -> None:
        size = f"{pluralize(channels, 'channel')}, {pluralize(envelopes, 'envelope')}"
        found = "sequences without gaps, hash chain intact" if not problems else pluralize(problems, "problem")
        self._out.heading("9  The whole file, verified")
        self._state(f"{size}: {found}", mark=NO if problems else YES)

    def _by_channel(self, facts: Mapping[str, str]) -> None:
        for channel_id, fact in facts.items():
            self._out.row(LISTED, ["", Cell(self._labels[channel_id], "dim"), fact])

    def _state(self, what: CellLike, *, mark: CellLike = "") -> None:
        self._out.row(STATED, [mark, what])

    def _row(self, what: CellLike, *, mark: CellLike = "", number: int | None = None, who: str = "") -> None:
        sequence = "" if number is None else str(number)
        self._out.row(SPOKEN, [mark, Cell(sequence, "dim"), Cell(who, participant_colour(who, NAMES)), what])
