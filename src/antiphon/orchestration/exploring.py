"""Every way a board can be played, from its start.

Rule 1: it is bounded. What was not looked at is taken to be fine, and the exploration says that it is not complete.
Rule 2: what can be reached counts whatever anybody writes; what can be ended counts only natural moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from antiphon.orchestration.board import END, Board, Move, Node, Word


class Exploration:
    """Where one can get from the start, and from where one can get to an end."""

    def __init__(self, board: Board, *, budget: int) -> None:
        self._board = board
        self.came_by: dict[Node, tuple[Node, Move] | None] = {board.start: None}
        """Every node that was reached, in the order of distance, and how."""
        self.fired: set[int] = set()
        self.held: set[str] = set()
        """Everybody who may get the turn."""
        self._before: dict[Node, dict[Node, bool]] = {}
        """From where each node is reached, and whether by a natural move."""
        self._last: dict[Node, bool] = {}
        """The nodes from which one move leads to an end, and whether a natural one does."""
        self._unseen: list[Node] = []
        self._explore(board.effort + budget)
        self.could_end = self._backwards(natural=False)
        """The nodes from which an end can be reached, or from which nobody looked any further."""
        self.can_end = self._backwards(natural=True)
        """Those of them from which natural moves do."""

    @property
    def complete(self) -> bool:
        return not self._unseen

    def _explore(self, most: int) -> None:
        line = deque(self.came_by)
        while line:
            node = line.popleft()
            self.held.update(node.holders)
            for word in self._board.words(node):
                if self._board.effort >= most:
                    self._unseen.append(node)
                    break
                self._board.effort += 1
                line.extend(self._follow(node, word))

    def _follow(self, node: Node, word: Word) -> Iterator[Node]:
        for move in self._board.moves(word):
            natural = self._board.is_natural(node, move)
            if move.rule is not None:
                self.fired.add(move.rule)
            if move.to == END:
                self._last[node] = natural or self._last.get(node, False)
                continue
            found = self._board.after(node, move)
            origins = self._before.setdefault(found, {})
            origins[node] = natural or origins.get(node, False)
            if found not in self.came_by:
                self.came_by[found] = node, move
                yield found

    def _backwards(self, *, natural: bool) -> set[Node]:
        found = {*_those(self._last, natural=natural), *self._unseen}
        line = deque(found)
        while line:
            origins = _those(self._before.get(line.popleft(), {}), natural=natural)
            new = [node for node in origins if node not in found]
            found.update(new)
            line.extend(new)
        return found

    def distance_to_end(self) -> int | None:
        """How many steps at least the way from the start to an end takes; None if there is none."""
        nearest = next((node for node in self.came_by if node in self._last), None)
        return None if nearest is None else len(self.path_to(nearest)) + 1

    def path_to(self, node: Node) -> Sequence[tuple[Node, Move]]:
        """The shortest way from the start."""
        path: list[tuple[Node, Move]] = []
        while (came := self.came_by[node]) is not None:
            path.append(came)
            node = came[0]
        return path[::-1]

    def loop_from(self, node: Node) -> Sequence[tuple[Node, Move]]:
        """How it goes on from here if nobody changes anything, until it comes round."""
        steps: list[tuple[Node, Move]] = []
        seen: set[Node] = set()
        while node not in seen:
            seen.add(node)
            quiet = next((move for move in self._board.quiet(node) if move.to != END), None)
            if quiet is None:
                break
            steps.append((node, quiet))
            node = self._board.after(node, quiet)
        return steps


def _those(nodes: Mapping[Node, bool], *, natural: bool) -> Iterator[Node]:
    return (node for node, is_natural in nodes.items() if is_natural or not natural)
