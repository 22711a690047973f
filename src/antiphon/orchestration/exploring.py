"""Every way a board can be played, from its start.

Rule 1: it is bounded. What was not looked at is taken to be fine, and the exploration says that it is not complete.
Rule 2: what can be reached counts whatever anybody writes; what can be ended counts only natural moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from antiphon.orchestration.board import END, LIGHT, NATURAL, POSSIBLE, PUT_IN, Board, Move, Node, Word


class Exploration:
    """Where one can get from the start, and from where one can get to an end."""

    def __init__(self, board: Board, *, budget: int) -> None:
        self._board = board
        self.came_by: dict[Node, tuple[Node, Move] | None] = {board.start: None}
        """Every node that was reached, in the order of distance, and how."""
        self.fired: set[int] = set()
        self.held: set[str] = set()
        """Everybody who may get the turn."""
        self._before: dict[Node, dict[Node, int]] = {}
        """From where each node is reached, and by how likely a move."""
        self._last: dict[Node, int] = {}
        """The nodes from which one move leads to an end, and how likely that is."""
        self._unseen: list[Node] = []
        board.allow(budget)
        self._explore()
        self.complete = not self._unseen and not board.partial
        """Whether everything was looked at."""
        self.can_end = self._backwards(NATURAL)
        """The nodes from which natural moves reach an end, or from which nobody looked any further."""
        self.could_end = self._backwards(POSSIBLE)
        """Those from which some moves do."""
        self.might_end = self._backwards(PUT_IN)
        """Those from which some moves do, if people put in a word."""

    def _explore(self) -> None:
        line = deque(self.came_by)
        while line:
            node = line.popleft()
            self.held.update(node.holders)
            for word in self._board.words(node):
                if self._board.spent:
                    self._unseen.append(node)
                    break
                self._board.effort += self._board.breadth
                line.extend(self._follow(node, word))

    def _follow(self, node: Node, word: Word) -> Iterator[Node]:
        moves = self._board.moves(word)
        self._board.effort += len(moves) * self._board.breadth // LIGHT
        for move in moves:
            likely = self._board.likelihood(node, move)
            if move.rule is not None:
                self.fired.add(move.rule)
            if move.to == END:
                self._last[node] = min(likely, self._last.get(node, likely))
                continue
            found = self._board.after(node, move)
            origins = self._before.setdefault(found, {})
            origins[node] = min(likely, origins.get(node, likely))
            if found not in self.came_by:
                self.came_by[found] = node, move
                yield found

    def _backwards(self, most: int) -> set[Node]:
        """The nodes from which moves that are at least so likely lead to an end."""
        found = {*(node for node, likely in self._last.items() if likely <= most), *self._unseen}
        line = deque(found)
        while line:
            origins = self._before.get(line.popleft(), {})
            new = [node for node, likely in origins.items() if likely <= most and node not in found]
            found.update(new)
            line.extend(new)
        return found

    def turns_to_end(self) -> int | None:
        """How many turns at least it takes from the start to an end; None if there is none."""
        far = {node: len(node.holders) for node in self._last}
        numbers = count()  # so that no two nodes are compared
        line = [(turns, next(numbers), node) for node, turns in far.items()]
        heapify(line)
        while line:
            turns, _, node = heappop(line)
            for origin in self._before.get(node, ()) if turns == far[node] else ():
                if turns + len(origin.holders) < far.get(origin, turns + len(origin.holders) + 1):
                    far[origin] = turns + len(origin.holders)
                    heappush(line, (far[origin], next(numbers), origin))
        return far.get(self._board.start)

    def path_to(self, node: Node) -> Sequence[tuple[Node, Move]]:
        """The shortest way from the start."""
        path: list[tuple[Node, Move]] = []
        while (came := self.came_by[node]) is not None:
            path.append(came)
            node = came[0]
        return path[::-1]

    def loop_from(self, node: Node) -> Sequence[tuple[Node, Move]]:
        """How it goes on from here if nobody changes anything, until it comes round, or no step is left."""
        steps: list[tuple[Node, Move]] = []
        seen: set[Node] = set()
        while node not in seen and not self._board.spent:
            seen.add(node)
            self._board.effort += self._board.breadth
            quiet = next((move for move in self._board.quiet(node) if move.to != END), None)
            if quiet is None:
                break
            steps.append((node, quiet))
            node = self._board.after(node, quiet)
        return steps
