"""Damage as a disk does it: whole pages of a database file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

LEAVES = (10, 13)
"""The first byte of a leaf: of an index, of a table."""


class Pages:
    """The pages of a closed database file."""

    def __init__(self, path: Path) -> None:
        self.path, self.data = path, path.read_bytes()
        self.size = int.from_bytes(self.data[16:18], "big")

    def leaves(self, name: str) -> list[int]:
        """The leaf pages of a table or an index, in order."""
        with closing(sqlite3.connect(self.path)) as connection:
            root = "SELECT rootpage FROM sqlite_master WHERE name = ?"
            return list(self._walked(connection.execute(root, (name,)).fetchone()[0]))

    def spoil(self, page: int) -> None:
        """Overwrite the beginning of a page."""
        with self.path.open("r+b") as file:
            file.seek((page - 1) * self.size)
            file.write(b"\xff" * 64)

    def _walked(self, page: int) -> Iterator[int]:
        start = (page - 1) * self.size
        if self.data[start] in LEAVES:
            yield page
            return
        for place in range(self._number(start + 3, 2)):
            yield from self._walked(self._number(start + self._number(start + 12 + 2 * place, 2), 4))
        yield from self._walked(self._number(start + 8, 4))

    def _number(self, at: int, length: int) -> int:
        return int.from_bytes(self.data[at : at + length], "big")
