"""Filters: which documents a search may find, as a short expression over their columns.

year >= 2020 and (tag = 'a' or tag in ('b', 'c')) and not draft = true

The text is parsed here and becomes an expression of pyarrow. No database ever sees it. A document without a value in a column
passes no comparison with that column, as in SQL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from unmask.errors import UnmaskError, unknown

if TYPE_CHECKING:
    from pyarrow.compute import Expression

ColumnType = Literal["integer", "number", "boolean", "text"]
_LONGEST, _DEEPEST = 10_000, 50
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<quoted>'(?:[^']|'')*')
      | (?P<named>"(?:[^"]|"")*")
      | (?P<sign><=|>=|!=|<>|==|=|<|>|\(|\)|,)
      | (?P<word>\w[\w.-]*)
    )""",
    re.VERBOSE,
)
_SIGNS = {"=": "__eq__", "==": "__eq__", "!=": "__ne__", "<>": "__ne__"} | {
    "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__",
}  # fmt: skip
_KEYWORDS = ("and", "or", "not", "in", "is", "null", "true", "false")
_EXAMPLE = "For example: year >= 2020 and tag in ('a', 'b')"


@dataclass(frozen=True)
class Column:
    """A column that filters may name: its name in the index, and what it holds."""

    field: str
    holds: ColumnType


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int

    @property
    def keyword(self) -> str | None:
        """The keyword that this is, in lower case; None for anything else."""
        word = self.text.lower()
        return word if self.kind == "word" and word in _KEYWORDS else None


def parse_filter(text: str, columns: Mapping[str, Column]) -> Expression:
    """The filter of a text. columns: those that it may name.

    Raises UnmaskError for a text that is no filter, for an unknown column, and for a value of another type than its column's.
    """
    if len(text) > _LONGEST:
        raise UnmaskError(f"The filter has {len(text)} characters; {_LONGEST} are allowed.")
    parser = _Parser(_tokens(text), columns)
    result = parser.alternatives(0)
    if parser.now.kind != "end":
        raise parser.problem("'and', 'or' or the end")
    return result


def _tokens(text: str) -> list[_Token]:
    tokens, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            place = at + len(text[at:]) - len(text[at:].lstrip())
            raise UnmaskError(f"The filter cannot be read at character {place + 1}: {text[place : place + 20]!r}. {_EXAMPLE}.")
        tokens.append(_Token(str(match.lastgroup), match[str(match.lastgroup)], match.start(str(match.lastgroup))))
        at = match.end()
    return [*tokens, _Token("end", "", len(text))]


class _Parser:
    """Reads tokens from the left. Each method reads one level of the grammar."""

    def __init__(self, tokens: list[_Token], columns: Mapping[str, Column]) -> None:
        self.tokens, self.columns, self.place = tokens, columns, 0

    @property
    def now(self) -> _Token:
        return self.tokens[self.place]

    def take(self) -> _Token:
        token = self.now
        self.place += token.kind != "end"
        return token

    def takes(self, *words: str) -> bool:
        """Go past these keywords or signs if they come next."""
        coming = [token.keyword or token.text for token in self.tokens[self.place : self.place + len(words)]]
        if coming != list(words) or self.now.kind in ("quoted", "named"):
            return False
        self.place += len(words)
        return True

    def problem(self, expected: str) -> UnmaskError:
        found = f"{self.now.text!r} at character {self.now.at + 1}" if self.now.kind != "end" else "the end"
        return UnmaskError(f"The filter has {found} where {expected} is expected. {_EXAMPLE}.")

    def alternatives(self, depth: int) -> Expression:
        result = self.conditions(depth)
        while self.takes("or"):
            result = result | self.conditions(depth)
        return result

    def conditions(self, depth: int) -> Expression:
        result = self.condition(depth)
        while self.takes("and"):
            result = result & self.condition(depth)
        return result

    def condition(self, depth: int) -> Expression:
        if depth > _DEEPEST:
            raise UnmaskError(f"The filter is nested too deeply; {_DEEPEST} levels are allowed.")
        if self.takes("not"):
            return ~self.condition(depth + 1)
        if self.takes("("):
            result = self.alternatives(depth + 1)
            self.expect(")")
            return result
        return self.comparison()

    def comparison(self) -> Expression:
        import pyarrow.compute as pc

        name, column = self.column()
        field = pc.field(column.field)
        if self.takes("is", "not", "null"):
            return field.is_valid()
        if self.takes("is", "null"):
            return field.is_null()
        if self.takes("not", "in"):
            return ~self.among(field, name, column) & field.is_valid()
        if self.takes("in"):
            return self.among(field, name, column)
        if self.now.text not in _SIGNS or self.now.kind != "sign":
            raise self.problem("=, !=, <, <=, >, >=, in, not in, is null or is not null")
        sign = _SIGNS[self.take().text]
        return _compared(field, column, sign, self.value(name, column))

    def among(self, field: Expression, name: str, column: Column) -> Expression:
        self.expect("(")
        values = [self.value(name, column)]
        while self.takes(","):
            values.append(self.value(name, column))
        self.expect(")")
        # one comparison for each value: a list would take the type of its first one
        result, *others = (_compared(field, column, "__eq__", value) for value in values)
        for other in others:
            result = result | other
        return result

    def expect(self, sign: str) -> None:
        if not self.takes(sign):
            raise self.problem(f"'{sign}'")

    def column(self) -> tuple[str, Column]:
        token = self.now
        if token.kind not in ("word", "named") or token.keyword:
            raise self.problem("the name of a column")
        name = token.text[1:-1].replace('""', '"') if token.kind == "named" else token.text
        if name not in self.columns:
            raise unknown("column in the filter", name, self.columns or ["(the documents have none)"])
        self.take()
        return name, self.columns[name]

    def value(self, name: str, column: Column) -> Any:
        """The next value, of the type that the column holds."""
        token = self.now
        if token.kind in ("quoted", "named"):
            value: Any = token.text[1:-1].replace(token.text[0] * 2, token.text[0])
        elif token.kind == "number":
            value = _number(token.text)
        elif token.keyword in ("true", "false"):
            value = token.keyword == "true"
        else:
            raise self.problem("a value (a number, 'text', true or false)")
        if not _fits(value, column.holds):
            hint = _NUMBERS_AS_TEXT if column.holds == "text" and token.kind == "number" else ""
            raise UnmaskError(
                f"Column '{name}' holds {_HOLDS[column.holds]}, so it cannot be compared with {token.text}.{hint}"
            )
        self.take()
        return value


_HOLDS = {"integer": "whole numbers", "number": "numbers", "boolean": "true or false", "text": "text (in quotes: 'a')"}
_NUMBERS_AS_TEXT = " In csv and tsv files, a column is text if one number is not in its shortest form: write 2.5, not 2.50."


def _number(text: str) -> int | float:
    value = float(text)
    if not math.isfinite(value):
        raise UnmaskError(f"The filter holds {text}, which is too large a number.")
    return int(text) if re.fullmatch(r"[+-]?\d+", text) and is_int64(int(text)) else value


def is_int64(value: int) -> bool:
    """Whether a column of whole numbers can hold it."""
    return -(2**63) <= value < 2**63


def _compared(field: Expression, column: Column, sign: str, value: Any) -> Expression:
    """A comparison in the type of the column. Arrow would choose the type by the value, and refuse what does not fit it exactly."""
    import pyarrow as pa

    if column.holds == "number":
        value = float(value)
    elif isinstance(value, float) and value.is_integer() and is_int64(int(value)):
        value = int(value)
    elif isinstance(value, float):  # beyond all whole numbers of the column, or between two of them
        field = field.cast(pa.float64(), safe=False)
    return getattr(field, sign)(pa.scalar(value, pa.float64()) if isinstance(value, float) else value)


def _fits(value: Any, holds: ColumnType) -> bool:
    if isinstance(value, bool):
        return holds == "boolean"
    return holds == "text" if isinstance(value, str) else holds in ("integer", "number")
