"""The syntax of regular expressions in JSON schemas: that of ECMA-262.

`\\d` and `\\w` are ASCII, `\\p{…}` knows the general categories of Unicode, and `$` is the very end. What needs
backtracking (look-around, references to groups) is refused.
"""

from __future__ import annotations

import string
import unicodedata

import msgspec

from antiphon.agents.pattern_categories import categories_of
from antiphon.core.words import shown

MAX_REPEAT = 1000
MAX_DEPTH = 50

LAST = 0x10FFFF
Ranges = tuple[tuple[int, int], ...]
ASCII: Ranges = ((0, 127),)
DIGITS: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACE: Ranges = (
    (9, 13),
    (32, 32),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
DIFFERENT: Ranges = ((28, 31), (128, LAST))
"""The characters that Python's `re` counts among digits, letters or spaces, and ECMA-262 does not; and some more."""
CLASSES = {"d": DIGITS, "w": WORD, "s": SPACE}
CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
LETTERS = frozenset(string.ascii_letters)
HEXADECIMAL = frozenset(string.hexdigits)
HIGH_HALVES, LOW_HALVES = range(0xD800, 0xDC00), range(0xDC00, 0xE000)
ASSERTIONS = {"b": "edge", "B": "no edge", "A": "start", "Z": "end"}


class BadPattern(ValueError):
    """A pattern cannot be read, or not be matched without backtracking."""


class UnsupportedPattern(BadPattern):
    """A legal pattern that cannot be matched here."""


class PatternChars(msgspec.Struct, frozen=True):
    """One character out of a set: of these ranges and general categories, or none of them."""

    ranges: Ranges
    categories: frozenset[str] = frozenset()
    negated: bool = False

    def has(self, code: int) -> bool:
        found = any(low <= code <= high for low, high in self.ranges) or (
            bool(self.categories) and unicodedata.category(chr(code)) in self.categories
        )
        return found != self.negated


class PatternPlace(msgspec.Struct, frozen=True):
    """A place between two characters: `start`, `end`, `edge` of a word, or `no edge`."""

    kind: str


class PatternSeries(msgspec.Struct, frozen=True):
    """One after the other."""

    parts: tuple[PatternNode, ...]


class PatternChoice(msgspec.Struct, frozen=True):
    """Any one of these."""

    parts: tuple[PatternNode, ...]


class PatternRepeat(msgspec.Struct, frozen=True):
    """The same again and again."""

    part: PatternNode
    least: int
    most: int | None


PatternNode = PatternChars | PatternPlace | PatternSeries | PatternChoice | PatternRepeat


def others(ranges: Ranges) -> Ranges:
    """All characters but these."""
    found, following = list[tuple[int, int]](), 0
    for low, high in sorted(ranges):
        if low > following:
            found.append((following, low - 1))
        following = max(following, high + 1)
    return (*found, (following, LAST)) if following <= LAST else tuple(found)


class PatternParser:
    """Reads a pattern into nodes.

    `widened`: for a set of characters that Python's `re` reads differently, the nodes have at least those of both.
    """

    def __init__(self, text: str, *, widened: bool = False) -> None:
        self._text, self._at, self._depth, self._widened = text, 0, 0, widened
        self._groups = set[str]()

    def parse(self) -> PatternNode:
        node = self._choice()
        if self._at < len(self._text):
            raise self._bad("there is a ')' without a '('")
        return node

    def _bad(self, why: str) -> BadPattern:
        return BadPattern(self._said(why))

    def _unsupported(self, why: str) -> UnsupportedPattern:
        return UnsupportedPattern(self._said(why))

    def _said(self, why: str) -> str:
        return f"pattern {shown(self._text)}: {why} (at character {self._at})"

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, expected: str) -> bool:
        found = self._text.startswith(expected, self._at)
        self._at += len(expected) if found else 0
        return found

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._bad("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _choice(self) -> PatternNode:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._unsupported(f"its groups are more than {MAX_DEPTH} deep")
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else PatternChoice(tuple(parts))

    def _sequence(self) -> PatternNode:
        parts: list[PatternNode] = []
        while self._peek() not in ("", "|", ")"):
            atom = self._atom()
            parts.append(atom if isinstance(atom, PatternPlace) else self._repeated(atom))
        return PatternSeries(tuple(parts))

    def _atom(self) -> PatternNode:
        char = self._next()
        match char:
            case "^" | "$":
                return PatternPlace("start" if char == "^" else "end")
            case ".":
                return PatternChars(others(LINE_ENDS[:1] if self._widened else LINE_ENDS))
            case "(":
                return self._group()
            case "[":
                return self._class()
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise self._bad(f"there is nothing that {char!r} could repeat")
            case _:
                return _one(ord(char))

    def _group(self) -> PatternNode:
        if self._take("?") and not self._take(":"):
            self._take("P")  # a named group as Python writes it
            if self._peek() != "<" or self._text[self._at + 1 : self._at + 2] in ("=", "!", ""):
                raise self._unsupported("look-around and flags need backtracking, or are not of ECMA-262")
            self._name_group()
        node = self._choice()
        if not self._take(")"):
            raise self._bad("a ')' is missing")
        return node

    def _name_group(self) -> None:
        name = self._until(">")[1:]
        if name in self._groups or not name.replace("$", "_").isidentifier():
            raise self._bad(f"{shown(name)} names another group, or is no name")
        self._groups.add(name)

    def _repeated(self, part: PatternNode) -> PatternNode:
        sign = self._peek()
        if sign == "{":
            return self._counted(part)
        if sign not in REPEATS:
            return part
        self._at += 1
        return self._only(PatternRepeat(part, *REPEATS[sign]))

    def _counted(self, part: PatternNode) -> PatternNode:
        end = self._text.find("}", self._at)
        counts = self._text[self._at + 1 : end].split(",") if end > 0 else []
        if not 1 <= len(counts) <= 2 or not any(counts) or not all(_is_count(count) for count in counts):
            return part  # a brace that stands for itself is read next
        self._at = end + 1
        least = int(counts[0] or 0)
        most = least if len(counts) == 1 else int(counts[1]) if counts[1] else None
        if most is not None and most < least:
            raise self._bad("something is repeated from more to less")
        if max(least, most or 0) > MAX_REPEAT:
            raise self._unsupported(f"something is repeated more than {MAX_REPEAT} times")
        return self._only(PatternRepeat(part, least, most))

    def _only(self, node: PatternRepeat) -> PatternRepeat:
        self._take("?")  # whether few or many are tried first makes no difference to whether any fit
        if self._peek() in ("*", "+", "?"):
            raise self._bad("a repetition is repeated without a group")
        return node

    def _escape(self) -> PatternNode:
        char = self._next()
        if char in ASSERTIONS:
            return PatternPlace(ASSERTIONS[char])
        if char in "123456789k":
            raise self._unsupported("a reference to a group needs backtracking")
        return self._escaped(char)

    def _escaped(self, char: str) -> PatternChars:
        """The characters that an escape stands for, also inside of a class."""
        if char in ("p", "P"):
            return self._property(negated=char == "P")
        return PatternChars(self._ranges(char))

    def _property(self, *, negated: bool) -> PatternChars:
        written = self._until("}")[1:] if self._peek() == "{" else self._next()
        if written == "ASCII":
            return PatternChars(others(ASCII) if negated else ASCII)
        try:
            return PatternChars((), categories_of(written, negated=negated))
        except LookupError as error:
            raise self._unsupported(str(error)) from None

    def _ranges(self, char: str) -> Ranges:
        if char.lower() in CLASSES:
            ranges = CLASSES[char.lower()]
            return (*(ranges if char.islower() else others(ranges)), *(DIFFERENT if self._widened else ()))
        if char in CONTROLS:
            return ((CONTROLS[char],) * 2,)
        if char == "c":
            if self._peek() not in LETTERS:
                raise self._bad("the escape '\\c' has no letter")
            return ((ord(self._next()) % 32,) * 2,)
        if char in ("x", "u"):
            return ((self._code(char),) * 2,)
        if char.isalnum():
            raise self._bad(f"the escape '\\{char}' is not known")
        return ((ord(char),) * 2,)

    def _code(self, char: str) -> int:
        code = self._hexadecimal(char)
        # Above U+FFFF a pattern may write a character as the two halves of its UTF-16 form.
        if char == "u" and code in HIGH_HALVES and self._text.startswith("\\u", self._at):
            at, self._at = self._at, self._at + 2
            low = self._hexadecimal("u")
            if low in LOW_HALVES:
                return 0x10000 + ((code - HIGH_HALVES.start) << 10) + (low - LOW_HALVES.start)
            self._at = at
        return code

    def _hexadecimal(self, char: str) -> int:
        if char == "u" and self._take("{"):
            digits, length = self._until("}"), 0
        else:
            length = 2 if char == "x" else 4
            digits, self._at = self._text[self._at : self._at + length], self._at + length
        if not digits or len(digits) < length or not set(digits) <= HEXADECIMAL:
            raise self._bad(f"the escape '\\{char}' has no code")
        code = int(digits, 16)
        if code > LAST:
            raise self._bad(f"there is no character {digits}")
        return code

    def _until(self, end: str) -> str:
        """What stands before the next `end`, which is read as well."""
        begin, self._at = self._at, self._text.find(end, self._at) + 1
        if self._at == 0:
            self._at = len(self._text)
            raise self._bad("it ends too early")
        return self._text[begin : self._at - 1]

    def _class(self) -> PatternNode:
        negated, found, categories = self._take("^"), list[tuple[int, int]](), set[str]()
        if self._widened and self._peek() == "]":
            raise self._unsupported("Python reads a ']' right behind '[' as a character")
        while not self._take("]"):
            member = self._member()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                member = self._range(member, self._member())
            found.extend(member.ranges)
            categories |= member.categories
        if self._widened and negated:
            return PatternChars((*others(tuple(found)), *DIFFERENT))
        return PatternChars(tuple(found), frozenset(categories), negated)

    def _member(self) -> PatternChars:
        char = self._next()
        if char != "\\":
            return _one(ord(char))
        char = self._next()
        return _one(8) if char == "b" else self._escaped(char)

    def _range(self, first: PatternChars, last: PatternChars) -> PatternChars:
        low, high = _single(first), _single(last)
        if low is None or high is None or low > high:
            raise self._bad("a range of characters goes from none to none, or backwards")
        return PatternChars(((low, high),))


def _single(chars: PatternChars) -> int | None:
    """The only character of a set; None if there are several."""
    match chars.ranges:
        case ((low, high),) if low == high:
            return low
        case _:
            return None


def _one(code: int) -> PatternChars:
    return PatternChars(((code, code),))


def _is_count(text: str) -> bool:
    return not text or (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_REPEAT)) + 1)
