"""A channel type of your own: an auction. Bidders speak in turn; who passes is out; the last one standing buys.

What the adapter must remember it folds from the log, so it remembers the same after a restart. Carol is a person and
may interject at any time; only what is said by the one whose turn it is, is a bid or a pass.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import ClassVar

from antiphon import (
    EV_CHANNEL_OPENED,
    EV_PACKET,
    EV_TEXT,
    Assign,
    Close,
    Decision,
    Envelope,
    Expectation,
    Hub,
    Seats,
    State,
    Wait,
    register_adapter,
)


@dataclass(frozen=True)
class Bids:
    """What an auction remembers."""

    bidder: str = ""
    price: int = 0
    leader: str = ""
    passed: tuple[str, ...] = ()


@register_adapter
class Auction:
    """The creator bids too. A bid is a number; anything else is a pass."""

    name: ClassVar[str] = "auction"
    seats: ClassVar[Seats] = Seats(least=2)
    ordered: ClassVar[bool] = True
    knobs: ClassVar[frozenset[str]] = frozenset({"reserve"})
    expectations: ClassVar[tuple[Expectation, ...]] = ()
    memory: ClassVar[type] = Bids

    def __init__(self, knobs: dict[str, object]) -> None:
        self.reserve = int(str(knobs.get("reserve", 0)))

    def evolve(self, memory: Bids, envelope: Envelope) -> Bids:
        if envelope.event_type == "antiphon.turn.assigned":
            [bidder] = envelope.event_data["speakers"]
            return replace(memory, bidder=bidder)
        if envelope.event_type not in (EV_TEXT, EV_PACKET) or envelope.sender_id != memory.bidder:
            return memory
        said = str(envelope.event_data.get("text"))
        if said.isdecimal() and int(said) > max(memory.price, self.reserve):
            return replace(memory, price=int(said), leader=envelope.sender_id)
        return replace(memory, passed=(*memory.passed, envelope.sender_id))

    def decide(self, memory: Bids, state: State, envelope: Envelope) -> Decision:
        if envelope.event_type == EV_CHANNEL_OPENED:
            return Assign((state.participant_order[0],), "bids first")
        if state.interjected:
            return Wait()
        bidding = [name for name in state.participant_order if name not in memory.passed]
        if not bidding:
            return Close("not sold")
        if bidding == [memory.leader]:
            return Close(f"sold to {memory.leader} for {memory.price}")
        order = state.participant_order
        place = order.index(envelope.sender_id)
        following = [*order[place + 1 :], *order[: place + 1]]
        return Assign((next(name for name in following if name in bidding),), "next bid")


BIDS = [
    ("alice", "110"),
    ("carol", "How lovely it is!"),
    ("bob", "120"),
    ("carol", "130"),
    ("alice", "pass"),
    ("bob", "135"),
    ("carol", "140"),
    ("bob", "pass"),
]


async def main() -> None:
    async with Hub.open("memory:") as hub:
        people = {name: await hub.register(name) for name in ("alice", "bob")}
        people["carol"] = await hub.register("carol", kind="human")
        opened = await people["alice"].open(type="auction", target=["bob", "carol"], knobs={"reserve": 100})
        seats = {name: await person.channel(opened.channel_id) for name, person in people.items()}

        for name, bid in BIDS:
            await seats[name].send(bid)
            print(f"{name:6} {bid:18} next: {opened.state.expected_next_speaker}")
        print("closed:", await opened.closed())


asyncio.run(main())
