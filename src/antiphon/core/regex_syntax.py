"""The syntax of regular expressions in JSON schemas: that of ECMA-262.

`\\d` and `\\w` are ASCII, `\\p{…}` knows the general categories of Unicode, and `$` is the very end. What needs
backtracking (look-around, references to groups) is refused.
"""

from __future__ import annotations

import re
import string
import unicodedata

import msgspec

from antiphon.core.text import describe

MAX_PATTERN_REPEAT = 1000
MAX_GROUP_DEPTH = 50

LAST_CODE_POINT = 0x10FFFF
CodeRanges = tuple[tuple[int, int], ...]
ASCII_RANGES: CodeRanges = ((0, 127),)
DIGIT_RANGES: CodeRanges = ((48, 57),)
WORD_RANGES: CodeRanges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACE_RANGES: CodeRanges = (
    *((9, 13), (0x2000, 0x200A), (0x2028, 0x2029)),
    *((code, code) for code in (0x20, 0xA0, 0x1680, 0x202F, 0x205F, 0x3000, 0xFEFF)),
)
LINE_END_RANGES: CodeRanges = ((10, 10), (13, 13), (0x2028, 0x2029))
PYTHON_ONLY_RANGES: CodeRanges = ((28, 31), (128, LAST_CODE_POINT))
"""The characters that Python's `re` counts among digits, letters or spaces, and ECMA-262 does not; and some more."""
CLASS_ESCAPES = {"d": DIGIT_RANGES, "w": WORD_RANGES, "s": SPACE_RANGES}
CONTROL_ESCAPES = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
REPEAT_COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
ASCII_LETTERS = frozenset(string.ascii_letters)
HEX_DIGITS = frozenset(string.hexdigits)
HIGH_SURROGATES, LOW_SURROGATES = range(0xD800, 0xDC00), range(0xDC00, 0xE000)
ASSERTION_ESCAPES = {"b": "edge", "B": "no edge", "A": "start", "Z": "end"}

CATEGORY_LONG_NAMES: dict[str, str] = dict(
    re.findall(
        r"(\w+)=(\w+)",
        """
    Letter=L Cased_Letter=LC Uppercase_Letter=Lu Lowercase_Letter=Ll Titlecase_Letter=Lt Modifier_Letter=Lm
    Other_Letter=Lo Mark=M Combining_Mark=M Nonspacing_Mark=Mn Spacing_Mark=Mc Enclosing_Mark=Me Number=N
    Decimal_Number=Nd digit=Nd Letter_Number=Nl Other_Number=No Punctuation=P punct=P Connector_Punctuation=Pc
    Dash_Punctuation=Pd Open_Punctuation=Ps Close_Punctuation=Pe Initial_Punctuation=Pi Final_Punctuation=Pf
    Other_Punctuation=Po Symbol=S Math_Symbol=Sm Currency_Symbol=Sc Modifier_Symbol=Sk Other_Symbol=So Separator=Z
    Space_Separator=Zs Line_Separator=Zl Paragraph_Separator=Zp Other=C Control=Cc cntrl=Cc Format=Cf Surrogate=Cs
    Private_Use=Co Unassigned=Cn
    """,
    )
)
ALL_CATEGORIES = frozenset(name for name in CATEGORY_LONG_NAMES.values() if len(name) == 2) - {"LC"}
CATEGORY_GROUPS = {"LC": frozenset({"Lu", "Ll", "Lt"}), "Any": ALL_CATEGORIES}
CATEGORY_PREFIXES = ("General_Category=", "gc=")


class BadPattern(ValueError):
    """A pattern cannot be read, or not be matched without backtracking."""


class UnsupportedPattern(BadPattern):
    """A legal pattern that cannot be matched here."""


class PatternChars(msgspec.Struct, frozen=True):
    """One character out of a set: of these ranges and general categories, or none of them."""

    ranges: CodeRanges
    categories: frozenset[str] = frozenset()
    negated: bool = False

    def has(self, code: int) -> bool:
        found = any(low <= code <= high for low, high in self.ranges) or (
            bool(self.categories) and unicodedata.category(chr(code)) in self.categories
        )
        return found != self.negated


class PatternAssertion(msgspec.Struct, frozen=True):
    """A place between two characters: `start`, `end`, `edge` of a word, or `no edge`."""

    kind: str


class PatternSequence(msgspec.Struct, frozen=True):
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


PatternNode = PatternChars | PatternAssertion | PatternSequence | PatternChoice | PatternRepeat


def complement_ranges(ranges: CodeRanges) -> CodeRanges:
    """All characters but these."""
    found, following = list[tuple[int, int]](), 0
    for low, high in sorted(ranges):
        if low > following:
            found.append((following, low - 1))
        following = max(following, high + 1)
    return (*found, (following, LAST_CODE_POINT)) if following <= LAST_CODE_POINT else tuple(found)


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

    def _bad(self, why: str, kind: type[BadPattern] = BadPattern) -> BadPattern:
        return kind(f"pattern {describe(self._text)}: {why} (at character {self._at})")

    def _unsupported(self, why: str) -> BadPattern:
        return self._bad(why, UnsupportedPattern)

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
        if self._depth > MAX_GROUP_DEPTH:
            raise self._unsupported(f"its groups are more than {MAX_GROUP_DEPTH} deep")
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else PatternChoice(tuple(parts))

    def _sequence(self) -> PatternNode:
        parts: list[PatternNode] = []
        while self._peek() not in ("", "|", ")"):
            atom = self._atom()
            parts.append(atom if isinstance(atom, PatternAssertion) else self._repeated(atom))
        return PatternSequence(tuple(parts))

    def _atom(self) -> PatternNode:
        char = self._next()
        match char:
            case "^" | "$":
                return PatternAssertion("start" if char == "^" else "end")
            case ".":
                return PatternChars(complement_ranges(LINE_END_RANGES[:1] if self._widened else LINE_END_RANGES))
            case "(":
                return self._group()
            case "[":
                return self._class()
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise self._bad(f"there is nothing that {char!r} could repeat")
            case _:
                return _one_char(ord(char))

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
            raise self._bad(f"{describe(name)} names another group, or is no name")
        self._groups.add(name)

    def _repeated(self, part: PatternNode) -> PatternNode:
        sign = self._peek()
        if sign == "{":
            counts = self._counts()
        else:
            counts = REPEAT_COUNTS.get(sign)
            self._at += counts is not None
        if counts is None:  # a brace that stands for itself is read next
            return part
        self._take("?")  # whether few or many are tried first makes no difference to whether any fit
        if self._peek() in ("*", "+", "?"):
            raise self._bad("a repetition is repeated without a group")
        return PatternRepeat(part, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        """How often the part before a brace is repeated; None if the brace stands for itself."""
        end = self._text.find("}", self._at)
        counts = self._text[self._at + 1 : end].split(",") if end > 0 else []
        if not 1 <= len(counts) <= 2 or not any(counts) or not all(_is_repeat_count(count) for count in counts):
            return None
        self._at = end + 1
        least = int(counts[0] or 0)
        most = least if len(counts) == 1 else int(counts[1]) if counts[1] else None
        if most is not None and most < least:
            raise self._bad("something is repeated from more to less")
        if max(least, most or 0) > MAX_PATTERN_REPEAT:
            raise self._unsupported(f"something is repeated more than {MAX_PATTERN_REPEAT} times")
        return least, most

    def _escape(self) -> PatternNode:
        char = self._next()
        if char in ASSERTION_ESCAPES:
            return PatternAssertion(ASSERTION_ESCAPES[char])
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
            return PatternChars(complement_ranges(ASCII_RANGES) if negated else ASCII_RANGES)
        try:
            return PatternChars((), _categories_of(written, negated=negated))
        except LookupError as error:
            raise self._unsupported(str(error)) from None

    def _ranges(self, char: str) -> CodeRanges:
        if char.lower() in CLASS_ESCAPES:
            ranges = CLASS_ESCAPES[char.lower()]
            return (
                *(ranges if char.islower() else complement_ranges(ranges)),
                *(PYTHON_ONLY_RANGES if self._widened else ()),
            )
        if char in CONTROL_ESCAPES:
            return ((CONTROL_ESCAPES[char],) * 2,)
        if char == "c":
            if self._peek() not in ASCII_LETTERS:
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
        if char == "u" and code in HIGH_SURROGATES and self._text.startswith("\\u", self._at):
            at, self._at = self._at, self._at + 2
            low = self._hexadecimal("u")
            if low in LOW_SURROGATES:
                return 0x10000 + ((code - HIGH_SURROGATES.start) << 10) + (low - LOW_SURROGATES.start)
            self._at = at
        return code

    def _hexadecimal(self, char: str) -> int:
        if char == "u" and self._take("{"):
            digits, length = self._until("}"), 0
        else:
            length = 2 if char == "x" else 4
            digits, self._at = self._text[self._at : self._at + length], self._at + length
        if not digits or len(digits) < length or not set(digits) <= HEX_DIGITS:
            raise self._bad(f"the escape '\\{char}' has no code")
        code = int(digits, 16)
        if code > LAST_CODE_POINT:
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
            return PatternChars((*complement_ranges(tuple(found)), *PYTHON_ONLY_RANGES))
        return PatternChars(tuple(found), frozenset(categories), negated)

    def _member(self) -> PatternChars:
        char = self._next()
        if char != "\\":
            return _one_char(ord(char))
        char = self._next()
        return _one_char(8) if char == "b" else self._escaped(char)

    def _range(self, first: PatternChars, last: PatternChars) -> PatternChars:
        low, high = _single_code(first), _single_code(last)
        if low is None or high is None or low > high:
            raise self._bad("a range of characters goes from none to none, or backwards")
        return PatternChars(((low, high),))


def _single_code(chars: PatternChars) -> int | None:
    """The only character of a set; None if there are several."""
    (low, high), *others = chars.ranges or ((0, 1),)
    return low if low == high and not others else None


def _one_char(code: int) -> PatternChars:
    return PatternChars(((code, code),))


def _is_repeat_count(text: str) -> bool:
    return not text or (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_PATTERN_REPEAT)) + 1)


def _categories_of(written: str, *, negated: bool) -> frozenset[str]:
    """The two-letter categories of `\\p{written}`, or of `\\P{written}`; `LookupError` for other properties."""
    name = written
    for prefix in CATEGORY_PREFIXES:
        name = name.removeprefix(prefix)
    name = CATEGORY_LONG_NAMES.get(name, name)
    found = CATEGORY_GROUPS.get(name) or frozenset(
        each for each in ALL_CATEGORIES if name and (each == name or each[0] == name)
    )
    if not found:
        raise LookupError(f"the property {written!r} is not known; there are general categories, such as L or Lu")
    return ALL_CATEGORIES - found if negated else found
