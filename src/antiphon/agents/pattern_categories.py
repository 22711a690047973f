"""The general categories of Unicode, as `\\p{…}` names them in a pattern."""

from __future__ import annotations

LONG_NAMES = {
    "Letter": "L",
    "Cased_Letter": "LC",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Combining_Mark": "M",
    "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "punct": "P",
    "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd",
    "Open_Punctuation": "Ps",
    "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf",
    "Other_Punctuation": "Po",
    "Symbol": "S",
    "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk",
    "Other_Symbol": "So",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp",
    "Other": "C",
    "Control": "Cc",
    "cntrl": "Cc",
    "Format": "Cf",
    "Surrogate": "Cs",
    "Private_Use": "Co",
    "Unassigned": "Cn",
}
ALL = frozenset(name for name in LONG_NAMES.values() if len(name) == 2) - {"LC"}
GROUPS = {"LC": frozenset({"Lu", "Ll", "Lt"}), "Any": ALL}
PREFIXES = ("General_Category=", "gc=")


def categories_of(written: str, *, negated: bool) -> frozenset[str]:
    """The two-letter categories of `\\p{written}`, or of `\\P{written}`; `LookupError` for other properties."""
    name = written
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    name = LONG_NAMES.get(name, name)
    found = GROUPS.get(name) or frozenset(each for each in ALL if name and (each == name or each[0] == name))
    if not found:
        raise LookupError(f"the property {written!r} is not known; there are general categories, such as L or Lu")
    return ALL - found if negated else found
