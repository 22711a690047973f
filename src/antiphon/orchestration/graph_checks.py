"""The model checker: explores the state space of a graph, and says what is wrong before a channel is opened.

Rule 1: an error is what can never work among these participants; everything else is a warning.
Rule 2: it is bounded: by counted steps, never by time, so that one graph always has the same findings. A node that was
        not explored is taken to be fine, and the exploration is not complete.
Rule 3: what can be reached counts any move; what can be ended counts only natural moves. A graph without warnings ends
        by a rule, if its speakers now and then do what the rules wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Literal

from antiphon.core.conditions import BranchFailed, FromSpeaker, TransitionCondition, leaf_conditions
from antiphon.core.envelope import spelling_advice
from antiphon.core.errors import RulesInvalid
from antiphon.core.ruleset import ChannelRoster, Finding
from antiphon.core.targets import target_participants
from antiphon.core.text import describe
from antiphon.orchestration.abstraction import VariableDomain, context_leaves
from antiphon.orchestration.rendering import GraphFields, describe_condition
from antiphon.orchestration.state_space import (
    NATURAL,
    NO_HOLDERS,
    PARTS_PER_STEP,
    POSSIBLE,
    PUT_IN,
    CheckerMove,
    StateNode,
    StateSpace,
    TurnHolders,
    Utterance,
)

EXPLORATION_BUDGET = 200_000
"""How many steps are taken to explore a graph, and again to explain each kind of finding."""
MAX_TRACE_STEPS = 12
NOT_EXPLORED = "it has too many situations to look at all of them; those beyond were not looked at"
CHECKED_KINDS = ("agent", "human", "service")


class Exploration:
    """The reachable part of a state space, and the nodes of it from which an end can be reached."""

    def __init__(self, board: StateSpace, *, budget: int) -> None:
        self._board = board
        self.reached_from: dict[StateNode, tuple[StateNode, CheckerMove] | None] = {board.start: None}
        """Every node that was reached, in the order of distance, and how."""
        self.fired: set[int] = set()
        self.holders: set[str] = set()
        """All participants that may get the turn."""
        self._predecessors: dict[StateNode, dict[StateNode, int]] = {}
        """From where each node is reached, and by how likely a move."""
        self._ending_nodes: dict[StateNode, int] = {}
        """The nodes from which one move leads to an end, and how likely that is."""
        self._unexplored_nodes: list[StateNode] = []
        board.allow(budget)
        self._explore()
        self.complete = not self._unexplored_nodes and not board.partial
        """Whether everything was looked at."""
        self.can_end = self._nodes_reaching_end(NATURAL)
        """The nodes from which natural moves reach an end, or that were not explored."""
        self.could_end = self._nodes_reaching_end(POSSIBLE)
        """The nodes from which possible moves do."""
        self.might_end = self._nodes_reaching_end(PUT_IN)
        """The nodes from which moves do, if people interject."""

    def _explore(self) -> None:
        line = deque(self.reached_from)
        while line:
            node = line.popleft()
            self.holders.update(node.holders)
            for word in self._board.utterances(node):
                if self._board.is_exhausted:
                    self._unexplored_nodes.append(node)
                    break
                self._board.effort += self._board.breadth
                line.extend(self._follow(node, word))

    def _follow(self, node: StateNode, word: Utterance) -> Iterator[StateNode]:
        moves = self._board.moves(word)
        self._board.effort += len(moves) * self._board.breadth // PARTS_PER_STEP
        for move in moves:
            likely = self._board.likelihood(node, move)
            if move.rule is not None:
                self.fired.add(move.rule)
            if move.to == NO_HOLDERS:
                self._ending_nodes[node] = min(likely, self._ending_nodes.get(node, likely))
                continue
            found = self._board.successor(node, move)
            origins = self._predecessors.setdefault(found, {})
            origins[node] = min(likely, origins.get(node, likely))
            if found not in self.reached_from:
                self.reached_from[found] = node, move
                yield found

    def _nodes_reaching_end(self, most: int) -> set[StateNode]:
        """The nodes from which moves that are at least so likely lead to an end."""
        found = {*(node for node, likely in self._ending_nodes.items() if likely <= most), *self._unexplored_nodes}
        line = deque(found)
        while line:
            origins = self._predecessors.get(line.popleft(), {})
            new = [node for node, likely in origins.items() if likely <= most and node not in found]
            found.update(new)
            line.extend(new)
        return found

    def turns_to_end(self) -> int | None:
        """How many turns at least it takes from the start to an end; None if there is none."""
        far = {node: len(node.holders) for node in self._ending_nodes}
        numbers = count()  # so that no two nodes are compared
        line = [(turns, next(numbers), node) for node, turns in far.items()]
        heapify(line)
        while line:
            turns, _, node = heappop(line)
            for origin in self._predecessors.get(node, ()) if turns == far[node] else ():
                if turns + len(origin.holders) < far.get(origin, turns + len(origin.holders) + 1):
                    far[origin] = turns + len(origin.holders)
                    heappush(line, (far[origin], next(numbers), origin))
        return far.get(self._board.start)

    def path_to(self, node: StateNode) -> Sequence[tuple[StateNode, CheckerMove]]:
        """The shortest way from the start."""
        path: list[tuple[StateNode, CheckerMove]] = []
        while (came := self.reached_from[node]) is not None:
            path.append(came)
            node = came[0]
        return path[::-1]

    def loop_from(self, node: StateNode) -> Sequence[tuple[StateNode, CheckerMove]]:
        """The moves from here while the context stays as it is, until a node comes round or no step is left."""
        steps: list[tuple[StateNode, CheckerMove]] = []
        seen: set[StateNode] = set()
        while node not in seen and not self._board.is_exhausted:
            seen.add(node)
            self._board.effort += self._board.breadth
            words = (Utterance(speaker, node.values, node.spent) for speaker in node.holders)
            moves = (move for word in words for move in self._board.moves(word))
            quiet = next((move for move in moves if move.to != NO_HOLDERS), None)
            if quiet is None:
                break
            steps.append((node, quiet))
            node = self._board.successor(node, quiet)
        return steps


def check_graph(
    graph: GraphFields,
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
        raise RulesInvalid(f"participants is {describe(given)}; give a list of names, or a dict from name to kind")
    if not kinds:
        raise RulesInvalid("participants is empty; give the names of those who take part")
    if writers is not None and not isinstance(writers, dict):
        raise RulesInvalid(f"writers is {describe(writers)}; give a dict from context key to names")
    strange = next((kind for kind in kinds.values() if kind not in CHECKED_KINDS), None)
    if strange is not None:
        known = ", ".join(CHECKED_KINDS)
        raise RulesInvalid(f"no kind of participant is called {describe(strange)}; there are: {known}")
    people = frozenset(name for name, kind in kinds.items() if kind == "human")
    return find_graph_faults(graph, ChannelRoster(kinds, people, writers, tier, spectators=people))


def find_graph_faults(graph: GraphFields, roster: ChannelRoster, budget: int = EXPLORATION_BUDGET) -> list[Finding]:
    """What is wrong with a graph in a channel of these."""
    strangers = list(_unknown_names(graph, roster))
    keys = list(_unrestricted_keys(graph, roster))
    if strangers:
        return [*strangers, *keys]
    board = StateSpace(graph, roster)
    found = Exploration(board, budget=budget)
    return [
        *_dead_rules(board, found, budget),
        *_unreached_participants(roster, found),
        *_missing_ends(board, found, budget),
        *_short_caps(board, found),
        *_order_dependencies(board, found, budget),
        *_endless_retries(board, found, budget),
        *keys,
        *([] if found.complete else [_warning("not_explored", NOT_EXPLORED)]),
    ]


def _warning(code: str, message: str) -> Finding:
    return Finding("warning", code, message)


def _unknown_names(graph: GraphFields, roster: ChannelRoster) -> Iterator[Finding]:
    known = ", ".join(roster.kinds)
    if graph.initial_speaker not in roster.kinds:
        advice = spelling_advice(graph.initial_speaker, roster.kinds) or f"there are: {known}"
        message = f"initial_speaker is {graph.initial_speaker!r}, who is not a participant; {advice}"
        yield Finding("error", "unknown_initial_speaker", message)
    targets = [(f"transition {place}", rule.then) for place, rule in enumerate(graph.transitions)]
    for where, target in (*targets, ("default_target", graph.default_target)):
        for name in target_participants(target):
            if name not in roster.kinds:
                advice = spelling_advice(name, roster.kinds) or f"there are: {known}"
                message = f"{where} gives the turn to {name!r}, who is not a participant; {advice}"
                yield Finding("error", "unknown_target", message)


def _unrestricted_keys(graph: GraphFields, roster: ChannelRoster) -> Iterator[Finding]:
    """Context variables that decide who speaks next, and that any participant may write."""
    if roster.writers is None:
        return
    level: Literal["error", "warning"] = "error" if roster.tier == "regulated" else "warning"
    for key in context_leaves(rule.when for rule in graph.transitions):
        if key not in roster.writers:
            message = f"anybody may write {key!r}, by which the turn is routed; name its writers in the knob 'writers'"
            yield Finding(level, "key_without_writers", message)


def _dead_rules(board: StateSpace, found: Exploration, budget: int) -> Iterator[Finding]:
    if not found.complete:
        return
    board.allow(budget)
    for rule in board.table.rules:
        if rule.place not in found.fired:
            what, why = describe_condition(rule.when), _why_dead(board, found, rule.place)
            yield _warning("dead_rule", f"transition {rule.place} ({what}) can never fire: {why}")
        elif (stranger := _unknown_speaker_in(board, rule.when)) is not None:
            who = f"{stranger!r} too, who {_describe_stranger(board, stranger)}"
            yield _warning("unknown_speaker", f"transition {rule.place} waits for a word of {who}")


def _unknown_speaker_in(board: StateSpace, condition: TransitionCondition) -> str | None:
    """A name in `FromSpeaker` or `BranchFailed` that is no participant; None if there is none."""
    named = (leaf.agent_id for leaf in leaf_conditions(condition) if isinstance(leaf, FromSpeaker | BranchFailed))
    return next((name for name in named if name and name not in board.roster.kinds), None)


def _describe_stranger(board: StateSpace, stranger: str) -> str:
    """Says that a name is no participant, and which participant may be meant."""
    return f"is not a participant; {spelling_advice(stranger, board.roster.kinds)}".removesuffix("; ")


def _why_dead(board: StateSpace, found: Exploration, place: int) -> str:
    rule = board.rules[place]
    stranger = _unknown_speaker_in(board, rule.when)
    if stranger is not None:
        return f"{stranger!r} {_describe_stranger(board, stranger)}"
    if rule.speakers is not None and not rule.speakers & {*found.holders, *board.people}:
        silent = ", ".join(sorted(rule.speakers))
        return f"no rule gives {silent} the turn" if rule.speakers else "nobody is two speakers at once"
    before = _find_preempting_rule(board, found, place)
    if before is None and board.is_exhausted:  # to find out more would take too long
        return "another always matches first, or its condition never holds"
    return "its condition never holds" if before is None else f"transition {before} always matches first"


def _find_preempting_rule(board: StateSpace, found: Exploration, place: int) -> int | None:
    """A rule that decides where this one would have matched as well."""
    for node in found.reached_from:
        for word in board.utterances(node):
            if board.is_exhausted:
                return None
            board.effort += board.breadth - 1
            first = board.preempting_rule(place, word)
            if first is not None:
                return first
    return None


def _unreached_participants(roster: ChannelRoster, found: Exploration) -> Iterator[Finding]:
    if not found.complete:
        return
    for name in roster.kinds:
        if name not in found.holders and name not in roster.spectators:
            yield _warning("unreachable_participant", f"no rule ever gives {name!r} the turn; only a handoff could")


def _missing_ends(board: StateSpace, found: Exploration, budget: int) -> Iterator[Finding]:
    if board.start not in found.could_end:
        yield _warning("no_way_to_end", f"no rule ends the channel: only {_what_ends(board, found)}")
        return
    traps = [node for node in found.reached_from if node not in found.can_end]
    if not traps:
        return
    board.allow(budget)
    # First a trap in which a value in the context keeps the turn going round: there the advice is clear.
    stuck = (node for node in traps if any(board.follows_context(*step) for step in found.loop_from(node)))
    trap = next(stuck, traps[0])
    board.allow(budget)
    trace = _describe_trap(board, found, trap)
    if trap not in found.could_end:
        yield _warning("no_way_to_end", f"once it has come this far, no rule ends the channel: {trace}")
        return
    advice = "put a rule that ends before it, wrap its condition in Once, or let somebody clear the variable"
    yield _warning("sticky_loop", f"the turn goes round for ever while the context stays as it is: {trace}; {advice}")


def _what_ends(board: StateSpace, found: Exploration) -> str:
    """What ends a channel that no rule ends by itself."""
    if board.start in found.might_end:
        return f"a word that {' or '.join(board.people)} puts in does"
    cap = board.graph.max_turns
    return "Finish, closing it, or its time to live does" if cap is None else f"Finish, or max_turns after {cap}, does"


def _describe_trap(board: StateSpace, found: Exploration, trap: StateNode) -> str:
    """The shortest way into a trap and once around, as a line."""
    steps = [*found.path_to(trap), *found.loop_from(trap)]
    if not steps:
        return trap.holders[0]
    shown = steps[:MAX_TRACE_STEPS]
    return " → ".join([*(_describe_step(board, *step) for step in shown), " and ".join(shown[-1][1].to), "…"])


def _describe_step(board: StateSpace, node: StateNode, move: CheckerMove) -> str:
    changed = [
        _describe_write(domain, now)
        for domain, before, now in zip(board.domains, node.values, move.values, strict=True)
        if before != now
    ]
    failed = [f"{', '.join(move.failed)} failed"] if move.failed else []
    did = [*changed, *([f"calls {move.tool}"] if move.tool is not None else []), *failed]
    return f"{move.speaker} ({', '.join(did)})" if did else move.speaker


def _describe_write(domain: VariableDomain, value: int) -> str:
    if value == domain.other:
        return f"{domain.key} is something else"
    return f"{domain.key} = {describe(domain.values[value])}" if value else f"{domain.key} cleared"


def _short_caps(board: StateSpace, found: Exploration) -> Iterator[Finding]:
    cap, shortest = board.graph.max_turns, found.turns_to_end()
    if cap is None or shortest is None or board.people or not found.complete:
        return
    if shortest > cap:
        yield _warning("cap_before_end", f"max_turns is {cap}, but the shortest way to an end takes {shortest} turns")


def _order_dependencies(board: StateSpace, found: Exploration, budget: int) -> Iterator[Finding]:
    """Groups after which it depends on who answers last where the turn goes."""
    board.allow(budget)
    reported: set[tuple[str, ...]] = set()
    for node in found.reached_from:
        if len(node.holders) > 1 and node.holders not in reported and _depends_on_order(board, node):
            reported.add(node.holders)
            names = ", ".join(node.holders)
            yield _warning("order_matters", f"after {names} at once, it depends on who answers last who comes next")


def _depends_on_order(board: StateSpace, node: StateNode) -> bool:
    ways: dict[tuple[int, ...], set[tuple[TurnHolders, ...]]] = {}
    for word in board.utterances(node):
        board.effort += board.breadth
        heard = word.holders is None and not word.failed
        quietly = tuple(move.to for move in board.moves(word) if move.tool is None) if heard else None
        if board.is_exhausted:  # what was cut short would seem to differ
            break
        if quietly is not None:
            ways.setdefault(word.values, set()).add(quietly)
    return any(len(each) > 1 for each in ways.values())


def _endless_retries(board: StateSpace, found: Exploration, budget: int) -> Iterator[Finding]:
    """Rules that try a group again each time a branch fails, however often that is."""
    if board.graph.max_turns is not None:
        return
    board.allow(budget)
    reported: set[int] = set()
    for group, move in _moves_after_failures(board, found):
        rule, again = move.rule, move.to == group.holders and board.successor(group, move).spent == group.spent
        if rule is None or rule in reported or not again:
            continue
        reported.add(rule)
        what = f"transition {rule} gives the turn to {', '.join(move.to)} again each time a branch fails"
        advice = "wrap its condition in Once, or set max_turns"
        yield _warning("endless_retry", f"{what}; one that always fails keeps it going round: {advice}")


def _moves_after_failures(board: StateSpace, found: Exploration) -> Iterator[tuple[StateNode, CheckerMove]]:
    """Where the turn may go when branches of a group have failed, as far as steps are left."""
    for group in found.reached_from:
        for word in board.failures(group):
            if board.is_exhausted:
                return
            board.effort += board.breadth
            yield from ((group, move) for move in board.moves(word))
