"""What is wrong with a graph, found before anybody speaks.

Rule 1: an error is what can never work among these participants; everything else is a warning.
Rule 2: it is bounded: by counted steps, never by time, so that one graph always has the same findings.
Rule 3: what is said of loops and ends comes from a bounded exploration of what the table can tell apart. A graph
        without warnings ends by a rule, if its speakers now and then do what the rules wait for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from antiphon.core.conditions import BranchFailed, FromSpeaker, TransitionCondition, leaves
from antiphon.core.errors import RulesInvalid
from antiphon.core.rules import Finding, Seating
from antiphon.core.targets import named_in
from antiphon.core.words import meant_by, shown
from antiphon.orchestration.board import Board, Holders, Move, Node
from antiphon.orchestration.domains import Domain, context_leaves
from antiphon.orchestration.exploring import Exploration
from antiphon.orchestration.wording import as_words, told_target

if TYPE_CHECKING:
    from antiphon.orchestration.graph import TransitionGraph

BUDGET = 200_000
"""How many steps are taken to explore a graph, and again to explain each kind of finding."""
LONGEST_TRACE = 12
KINDS = ("agent", "human", "service")


def check_graph(
    graph: TransitionGraph,
    participants: Sequence[str] | Mapping[str, str],
    *,
    writers: Mapping[str, Sequence[str]] | None,
    tier: str | None,
) -> list[Finding]:
    """What is wrong with a graph among these participants."""
    given: object = participants
    if isinstance(given, dict):
        kinds = dict(given)
    elif isinstance(given, list | tuple) and all(isinstance(name, str) for name in given):
        kinds = dict.fromkeys(given, "agent")
    else:
        raise RulesInvalid(f"participants is {shown(given)}; give a list of names, or a dict from name to kind")
    if not kinds:
        raise RulesInvalid("participants is empty; give the names of those who take part")
    if writers is not None and not isinstance(writers, dict):
        raise RulesInvalid(f"writers is {shown(writers)}; give a dict from context key to names")
    strange = next((kind for kind in kinds.values() if kind not in KINDS), None)
    if strange is not None:
        raise RulesInvalid(f"no kind of participant is called {shown(strange)}; there are: {', '.join(KINDS)}")
    people = frozenset(name for name, kind in kinds.items() if kind == "human")
    return check_seated(graph, Seating(kinds, people, writers, tier, spectators=people))


def check_seated(graph: TransitionGraph, seating: Seating, *, budget: int = BUDGET) -> list[Finding]:
    """What is wrong with a graph in a channel of these."""
    strangers = list(_strangers(graph, seating))
    keys = list(_open_keys(graph, seating))
    if strangers:
        return [*strangers, *keys]
    board = Board(graph, seating)
    found = Exploration(board, budget=budget)
    return [
        *_dead_rules(board, found, budget),
        *_unreached(seating, found),
        *_endless(board, found, budget),
        *_capped(board, found),
        *_racing(board, found, budget),
        *_retrying(board, found, budget),
        *keys,
        *_unexplored(found),
    ]


def _warning(code: str, message: str) -> Finding:
    return Finding("warning", code, message)


def _strangers(graph: TransitionGraph, seating: Seating) -> Iterator[Finding]:
    known = ", ".join(seating.kinds)
    if graph.initial_speaker not in seating.kinds:
        advice = meant_by(graph.initial_speaker, seating.kinds) or f"there are: {known}"
        message = f"initial_speaker is {graph.initial_speaker!r}, who is not a participant; {advice}"
        yield Finding("error", "unknown_initial_speaker", message)
    targets = [(f"transition {place}", rule.then) for place, rule in enumerate(graph.transitions)]
    for where, target in (*targets, ("default_target", graph.default_target)):
        for name in named_in(target):
            if name not in seating.kinds:
                advice = meant_by(name, seating.kinds) or f"there are: {known}"
                message = f"{where} gives the turn to {name!r}, who is not a participant; {advice}"
                yield Finding("error", "unknown_target", message)


def _open_keys(graph: TransitionGraph, seating: Seating) -> Iterator[Finding]:
    """Context variables that decide who speaks next, and that anybody may write."""
    if seating.writers is None:
        return
    level: Literal["error", "warning"] = "error" if seating.tier == "regulated" else "warning"
    for key in context_leaves(rule.when for rule in graph.transitions):
        if key not in seating.writers:
            message = f"anybody may write {key!r}, by which the turn is routed; name its writers in the knob 'writers'"
            yield Finding(level, "key_without_writers", message)


def _dead_rules(board: Board, found: Exploration, budget: int) -> Iterator[Finding]:
    if not found.complete:
        return
    board.allow(budget)
    for rule in board.table.rules:
        if rule.place not in found.fired:
            why = _why_dead(board, found, rule.place)
            yield _warning("dead_rule", f"transition {rule.place} ({as_words(rule.when)}) can never fire: {why}")
        elif (stranger := _stranger_in(board, rule.when)) is not None:
            who = _no_participant(board, stranger)
            message = f"transition {rule.place} waits for a word of {stranger!r} too, who {who}"
            yield _warning("unknown_speaker", message)


def _stranger_in(board: Board, condition: TransitionCondition) -> str | None:
    """Somebody who is named as a speaker and takes no part."""
    named = (leaf.agent_id for leaf in leaves(condition) if isinstance(leaf, FromSpeaker | BranchFailed))
    return next((name for name in named if name and name not in board.seating.kinds), None)


def _no_participant(board: Board, stranger: str) -> str:
    """Says that a name is no participant, and which participant may be meant."""
    advice = meant_by(stranger, board.seating.kinds)
    return f"is not a participant; {advice}" if advice else "is not a participant"


def _why_dead(board: Board, found: Exploration, place: int) -> str:
    rule = board.rules[place]
    stranger = _stranger_in(board, rule.when)
    if stranger is not None:
        return f"{stranger!r} {_no_participant(board, stranger)}"
    if rule.speakers is not None and not rule.speakers & {*found.held, *board.people}:
        silent = ", ".join(sorted(rule.speakers)) or "nobody"
        return f"no rule gives {silent} the turn" if rule.speakers else "nobody is two speakers at once"
    before = _first_instead(board, found, place)
    if before is None and board.spent:  # to find out more would take too long
        return "another always matches first, or its condition never holds"
    return "its condition never holds" if before is None else f"transition {before} always matches first"


def _first_instead(board: Board, found: Exploration, place: int) -> int | None:
    """A rule that decides where this one would have matched as well."""
    for node in found.came_by:
        for word in board.words(node):
            if board.spent:
                return None
            board.effort += board.breadth - 1
            first = board.instead(place, word)
            if first is not None:
                return first
    return None


def _unreached(seating: Seating, found: Exploration) -> Iterator[Finding]:
    if not found.complete:
        return
    for name in seating.kinds:
        if name not in found.held and name not in seating.spectators:
            yield _warning("unreachable_participant", f"no rule ever gives {name!r} the turn; only a handoff could")


def _endless(board: Board, found: Exploration, budget: int) -> Iterator[Finding]:
    if board.start not in found.could_end:
        yield _warning("no_way_to_end", f"no rule ends the channel: only {_what_ends(board, found)}")
        return
    traps = [node for node in found.came_by if node not in found.can_end]
    if not traps:
        return
    board.allow(budget)
    trap = next((node for node in traps if _is_stuck(board, found, node)), traps[0])
    board.allow(budget)
    trace = _told(board, found, trap)
    if trap not in found.could_end:
        yield _warning("no_way_to_end", f"once it has come this far, no rule ends the channel: {trace}")
        return
    advice = "put a rule that ends before it, wrap its condition in Once, or let somebody clear the variable"
    yield _warning("sticky_loop", f"the turn goes round for ever while the context stays as it is: {trace}; {advice}")


def _what_ends(board: Board, found: Exploration) -> str:
    """What ends a channel that no rule ends by itself."""
    if board.start in found.might_end:
        return f"a word that {' or '.join(board.people)} puts in does"
    cap = board.graph.max_turns
    return "Finish, closing it, or its time to live does" if cap is None else f"Finish, or max_turns after {cap}, does"


def _is_stuck(board: Board, found: Exploration, trap: Node) -> bool:
    """Whether it is a value in the context that keeps the turn going round."""
    return any(board.follows_context(node, move) for node, move in found.loop_from(trap))


def _told(board: Board, found: Exploration, trap: Node) -> str:
    """The shortest way into a trap and once around, as a line."""
    steps = [*found.path_to(trap), *found.loop_from(trap)]
    if not steps:
        return trap.holders[0]
    words = [_step(board, node, move) for node, move in steps[:LONGEST_TRACE]]
    return " → ".join([*words, " and ".join(steps[:LONGEST_TRACE][-1][1].to), "…"])


def _step(board: Board, node: Node, move: Move) -> str:
    changed = [
        _written(domain, now)
        for domain, before, now in zip(board.domains, node.values, move.values, strict=True)
        if before != now
    ]
    failed = [f"{', '.join(move.failed)} failed"] if move.failed else []
    did = [*changed, *([f"calls {move.tool}"] if move.tool is not None else []), *failed]
    return f"{move.speaker} ({', '.join(did)})" if did else move.speaker


def _written(domain: Domain, value: int) -> str:
    if value == domain.other:
        return f"{domain.key} is something else"
    return f"{domain.key} = {shown(domain.values[value])}" if value else f"{domain.key} cleared"


def _capped(board: Board, found: Exploration) -> Iterator[Finding]:
    cap, shortest = board.graph.max_turns, found.turns_to_end()
    if cap is None or shortest is None or board.people or not found.complete:
        return
    if shortest > cap:
        message = f"max_turns is {cap}, but the shortest way to an end takes {shortest} turns"
        yield _warning("cap_before_end", message)


def _racing(board: Board, found: Exploration, budget: int) -> Iterator[Finding]:
    """Groups after which it depends on who answers last where the turn goes."""
    board.allow(budget)
    told: set[tuple[str, ...]] = set()
    for node in found.came_by:
        if len(node.holders) > 1 and node.holders not in told and _differs(board, node):
            told.add(node.holders)
            names = ", ".join(node.holders)
            yield _warning("order_matters", f"after {names} at once, it depends on who answers last who comes next")


def _differs(board: Board, node: Node) -> bool:
    ways: dict[tuple[int, ...], set[tuple[Holders, ...]]] = {}
    for word in board.words(node):
        board.effort += board.breadth
        heard = word.holders is None and not word.failed
        quietly = tuple(board.quietly(word)) if heard else None
        if board.spent:  # what was cut short would seem to differ
            break
        if quietly is not None:
            ways.setdefault(word.values, set()).add(quietly)
    return any(len(each) > 1 for each in ways.values())


def _retrying(board: Board, found: Exploration, budget: int) -> Iterator[Finding]:
    """Rules that try a group again each time a branch fails, however often that is."""
    if board.graph.max_turns is not None:
        return
    board.allow(budget)
    told: set[int] = set()
    for group, move in _after_failures(board, found):
        rule, again = move.rule, move.to == group.holders and board.after(group, move).spent == group.spent
        if rule is None or rule in told or not again:
            continue
        told.add(rule)
        what = f"transition {rule} gives the turn to {', '.join(move.to)} again each time a branch fails"
        advice = "wrap its condition in Once, or set max_turns"
        yield _warning("endless_retry", f"{what}; one that always fails keeps it going round: {advice}")


def _after_failures(board: Board, found: Exploration) -> Iterator[tuple[Node, Move]]:
    """Where the turn may go when branches of a group have failed, as far as steps are left."""
    for group in found.came_by:
        for word in board.failures(group):
            if board.spent:
                return
            board.effort += board.breadth
            yield from ((group, move) for move in board.moves(word))


def _unexplored(found: Exploration) -> Iterator[Finding]:
    if not found.complete:
        message = "it has too many situations to look at all of them; those beyond were not looked at"
        yield _warning("not_explored", message)


def summary(graph: TransitionGraph) -> list[str]:
    """The table as lines, in the order in which it is read."""
    rules = sorted(enumerate(graph.transitions), key=lambda each: each[1].priority)
    lines = [f"{place}: {as_words(rule.when)} → {told_target(rule.then)}" for place, rule in rules]
    return [*lines, f"otherwise → {told_target(graph.default_target)}"]
