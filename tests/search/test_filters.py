"""Filters: what a short expression lets through, by Python's own comparisons, and mistakes that are told in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import cases
from unmask.errors import UnmaskError
from unmask.search.filters import Column, parse_filter

COLUMNS = {
    "year": Column("c0", "integer"),
    "price": Column("c1", "number"),
    "new": Column("c2", "boolean"),
    "tag": Column("c3", "text"),
    'odd "name"; --': Column("c4", "text"),
}
ROWS: list[dict[str, Any]] = [
    {"year": 2019, "price": 1.5, "new": True, "tag": "a", 'odd "name"; --': "x"},
    {"year": 2020, "price": 2.0, "new": False, "tag": "o'b", 'odd "name"; --': "y"},
    {"year": 2021, "price": None, "new": None, "tag": None, 'odd "name"; --': None},
    {"year": None, "price": -3.0, "new": True, "tag": "", 'odd "name"; --': "x"},
]
TABLE = pa.table(
    {
        "row": range(len(ROWS)),
        "c0": pa.array([row["year"] for row in ROWS], pa.int64()),
        "c1": pa.array([row["price"] for row in ROWS], pa.float64()),
        "c2": pa.array([row["new"] for row in ROWS], pa.bool_()),
        "c3": pa.array([row["tag"] for row in ROWS], pa.large_string()),
        "c4": pa.array([row['odd "name"; --'] for row in ROWS], pa.large_string()),
    }
)


def passing(text: str) -> list[int]:
    return list(TABLE.filter(parse_filter(text, COLUMNS))["row"].to_pylist())


def by_hand(rule: Callable[[dict[str, Any]], bool]) -> list[int]:
    return [place for place, row in enumerate(ROWS) if rule(row)]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("year >= 2020", lambda row: row["year"] is not None and row["year"] >= 2020),
        ("year < 2020.5", lambda row: row["year"] is not None and row["year"] < 2020.5),
        ("price > -5 and price <= 1.5", lambda row: row["price"] is not None and -5 < row["price"] <= 1.5),
        ("tag = 'a'", lambda row: row["tag"] == "a"),
        ('tag == "a"', lambda row: row["tag"] == "a"),
        ("tag = 'o''b'", lambda row: row["tag"] == "o'b"),
        ("tag != 'a'", lambda row: row["tag"] not in ("a", None)),
        ("tag <> 'a'", lambda row: row["tag"] not in ("a", None)),
        ("NOT tag = 'a'", lambda row: row["tag"] not in ("a", None)),
        ("tag in ('a', '')", lambda row: row["tag"] in ("a", "")),
        ("tag not in ('a')", lambda row: row["tag"] not in ("a", None)),
        ("year in (2019, 2021.0)", lambda row: row["year"] in (2019, 2021)),
        ("new = true", lambda row: row["new"] is True),
        ("new is null", lambda row: row["new"] is None),
        ("tag is not null", lambda row: row["tag"] is not None),
        ('"odd ""name""; --" = \'x\'', lambda row: row['odd "name"; --'] == "x"),
        ("year = 2019 or year = 2020 and tag = 'a'", lambda row: row["year"] == 2019),
        ("(year = 2019 or year = 2020) and tag = 'a'", lambda row: row["year"] == 2019),
        ("not (year = 2019 or new = true)", lambda row: row["year"] == 2020),
        ("tag = ''' or 1=1 --'", lambda row: False),
    ],
)
def test_a_filter_lets_through_what_it_says(text: str, rule: Callable[[dict[str, Any]], bool]) -> None:
    assert passing(text) == by_hand(rule)


LARGE = [10, 25_000_000, 2**53 + 1, 1234567890123456789, 2**63 - 1, -(2**63)]


@cases("holds", ["integer", "number"])
@cases(
    "value",
    ["1e6", "2.5", "25000000", "25000000.5", "1234567890123456789", "1234567890123456788", "1e18", "1e30", "-1e30", "9" * 30],
)
@cases("sign", [">=", "<", "=", "!=", "in"])
def test_large_numbers_are_compared_in_the_type_of_the_column(sign: str, value: str, holds: Any) -> None:
    kind = pa.int64() if holds == "integer" else pa.float64()
    held = LARGE if holds == "integer" else [float(one) for one in LARGE]
    table = pa.table({"row": range(len(LARGE)), "n": pa.array(held, kind)})
    column = {"n": Column("n", holds)}
    wanted = int(value) if value.isdigit() and holds == "integer" else float(value)
    text = f"n in (3, {value})" if sign == "in" else f"n {sign} {value}"
    found = table.filter(parse_filter(text, column))["row"].to_pylist()
    assert found == [place for place, one in enumerate(held) if _is(one, sign, wanted)]


def _is(one: float, sign: str, value: float) -> bool:
    return {">=": one >= value, "<": one < value, "=": one == value, "!=": one != value, "in": one == value}[sign]


@given(st.text(max_size=20))
def test_any_text_can_be_looked_for(value: str) -> None:
    quoted = value.replace("'", "''")
    table = pa.table({"c3": pa.array([value, value + "x", None], pa.large_string())})
    assert table.filter(parse_filter(f"tag = '{quoted}'", COLUMNS)).num_rows == 1


@given(st.text(alphabet="year tag='\"()<>!,andornti 0129.-+e", max_size=40))
def test_any_other_text_is_a_filter_or_is_refused(text: str) -> None:
    try:
        passing(text)
    except UnmaskError as error:
        assert len(str(error)) < 400


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("yaer = 2020", "Unknown column in the filter 'yaer'. Did you mean 'year'?"),
        ("year = 'x'", "Column 'year' holds whole numbers"),
        ("tag = 5", "Column 'tag' holds text"),
        ("new = 1", "Column 'new' holds true or false"),
        ("year = true", "Column 'year' holds whole numbers"),
        ("year", "the end where =, !="),
        ("year >=", "the end where a value"),
        ("year >= 2020 tag = 'a'", "'tag' at character 14 where 'and', 'or' or the end"),
        ("(year = 1", "the end where ')'"),
        ("tag in ('a'", "the end where ')'"),
        ("= 3", "'=' at character 1 where the name of a column"),
        ("year = 1; drop table x", "cannot be read at character 9"),
        ("", "the end where the name of a column"),
        ("year = 1e999", "too large"),
        ("(" * 60 + "year = 1" + ")" * 60, "nested too deeply"),
        ("not " * 60 + "year = 1", "nested too deeply"),
        ("year = 1 or " * 2000 + "year = 1", "10000 are allowed"),
    ],
)
def test_a_mistake_is_told(text: str, told: str) -> None:
    with pytest.raises(UnmaskError) as error:
        passing(text)
    assert told in str(error.value)


def test_documents_without_columns_say_so() -> None:
    with pytest.raises(UnmaskError, match="the documents have none"):
        parse_filter("a = 1", {})
