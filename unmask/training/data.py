"""Training data: sentences, pairs and triples from files. Every row is checked before training starts."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from unmask.errors import UnmaskError
from unmask.io.rows import Row, field
from unmask.tasks import columns as task_columns
from unmask.training.sources import open_source, refuse_split, titled_documents
from unmask.training.text_keys import Positives, several_positives, text_key

# an anchor's column -> the columns that may hold its positive, the likeliest first
PARTNERS: Final[dict[str, tuple[str, ...]]] = {
    "anchor": ("positive",),
    "query": ("positive", "passage", "document", "context", "answer"),
    "question": ("positive", "context", "passage", "answer"),
    "sentence1": ("positive", "sentence2"),
    "premise": ("positive", "hypothesis"),
}
_ROLES: Final = ("text", "label", "anchor", "positive", "negative", "negatives")

# Words in the name of a column, or values of it, that say whether or how much the texts of a pair match. A column of pairs that has them
# turns some rows into the opposite of training pairs.
_VERDICT_NAMES: Final = frozenset(
    (
        "label",
        "labels",
        "gold",
        "score",
        "scores",
        "similarity",
        "relatedness",
        "entailment",
        "contradiction",
        "duplicate",
        "paraphrase",
        "relevance",
        "relevant",
        "rating",
        "grade",
        "judgment",
        "judgement",
        "match",
        "correct",
        "equivalent",
        "equivalence",
        "verdict",
        "stance",
        "quality",
        "answerable",
        "impossible",
        "target",
        "class",
    )
)
_VERDICT_VALUES: Final = frozenset(
    (
        "entailment",
        "contradiction",
        "neutral",
        "not_entailment",
        "duplicate",
        "not_duplicate",
        "paraphrase",
        "not_paraphrase",
        "supports",
        "support",
        "refutes",
        "refute",
        "yes",
        "no",
        "true",
        "false",
    )
)
_NEGATIVE_NAME: Final = re.compile(r"(?:^|[^a-z])(?:neg|negs|negative|negatives)(?![a-z])|[Nn]eg(?:ative)?s?$")
_FEW, _SHORT = 20, 40  # a column that names classes has few different texts, and short ones

Value = str | int | float | bool


class AtLeast(BaseModel):
    """A condition on a column of numbers: `where = { score = { at_least = 4 } }`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_least: float


Condition = Value | tuple[Value, ...] | AtLeast


class DataSource(BaseModel):
    """One [data.NAME] table of a recipe: where rows come from, which rows to use, and what their columns mean.

    path: a file (jsonl, json, parquet, feather, csv, tsv, txt), a folder of queries and documents, hub:REPO[:CONFIG],
    starter:reference, starter:pairs or starter:labels. columns: from our name of a column to the file's name. split: of the hub, or of
    a folder's judgements. where: use only rows in which these columns have a value, one of several values, or at least a number.
    negatives: most negatives of an example; if not given, all columns, or one of a list or of other labels.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    columns: dict[str, str] = {}
    split: str = "train"
    instruction: str | None = None
    document_instruction: str | None = None
    limit: int | None = Field(default=None, ge=1)
    where: dict[str, Condition] = {}
    negatives: int | None = Field(default=None, ge=0)

    @field_validator("columns")
    @classmethod
    def _are_roles(cls, columns: dict[str, str]) -> dict[str, str]:
        for role in columns:
            if role not in _ROLES and not role.startswith("negative_"):
                raise ValueError(f"'{role}' is none of {', '.join(_ROLES)}, negative_1, negative_2 and so on")
        unread = columns.keys() - {"text", "label"}
        if "label" in columns and unread:
            raise ValueError(f"a label goes with a text, and not with {', '.join(sorted(unread))}: name text and label only")
        return columns


@dataclass(frozen=True)
class Example:
    """One sentence (1 text) or one pair (anchor, positive, negatives).

    row: its line in the file. classes: the class of each text, by its number; empty without labels.
    """

    row: int
    texts: tuple[str, ...]
    classes: tuple[int, ...] = ()


@dataclass(frozen=True)
class DataSet:
    """Examples of one source, checked.

    revision: hash of their texts and classes. skipped: reason -> rows left out. positives: of the anchors of pairs that have several, all
    that the source names, also in rows that are not among the examples. plain: of the documents with a title of a folder, the key of title
    and text -> the key of the text. unread: columns of the file that nothing was read from.
    """

    name: str
    kind: Literal["sentences", "pairs"]
    columns: tuple[str, ...]
    examples: list[Example]
    source: DataSource
    revision: str
    skipped: dict[str, int]
    positives: Positives = dataclass_field(default_factory=dict)
    plain: Mapping[str, str] = dataclass_field(default_factory=dict)
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Roles:
    """The columns of anchor, positive and negatives. listed: the negatives are one column that holds a list."""

    anchor: str
    positive: str
    negatives: tuple[str, ...] = ()
    listed: bool = False


def read_sentences(name: str, source: DataSource, root: Path, seed: int) -> DataSet:
    """All texts of a source: its `text` column or, without one, all texts of its pairs.

    Empty and repeated texts are left out and counted. Raises UnmaskError with file and line for a row without text.
    """
    file, table = read_table(source, root)
    return sentences_of(name, source, file, table, seed)


def sentences_of(name: str, source: DataSource, file: Path, table: Sequence[tuple[int, Row]], seed: int) -> DataSet:
    """As `read_sentences`, of rows that are read."""
    columns = _text_columns(file, source, table)
    skipped: Counter[str] = Counter()
    unique: dict[str, Example] = {}
    for line, row in table:
        for column in columns:
            for text in _strings(file, line, row, column):
                if not (text := text.strip()):
                    skipped["empty"] += 1
                elif text in unique:
                    skipped["repeated"] += 1
                else:
                    unique[text] = Example(line, (text,))
    dataset = data_set(name, "sentences", ("text",), list(unique.values()), source, seed, skipped, file)
    return replace(dataset, unread=unread_columns(source, table, columns))


def read_pairs(name: str, source: DataSource, root: Path, seed: int) -> DataSet:
    """Pairs or triples of a source, one for each positive of an anchor.

    Left out and counted: anchors equal to their positive, repeated rows, rows without a positive or with too few negatives, and rows
    with a negative that another row names as a positive of the same anchor. Raises UnmaskError with file and line for a text that is
    missing, empty or not a string, for a negative equal to its positive, for a column that is named and not read, and for one that is not
    named and may say that a pair does not match.
    """
    file, table = read_table(source, root)
    return pairs_of(name, source, file, table, seed)


def pairs_of(
    name: str, source: DataSource, file: Path, table: Sequence[tuple[int, Row]], seed: int, *, as_matches: bool = True
) -> DataSet:
    """As `read_pairs`, of rows that are read. as_matches: whether training takes both texts of a pair for a match."""
    roles = _pair_roles(file, table)
    _require_read(name, source, file, roles)
    unread = unread_columns(source, table, (roles.anchor, roles.positive, *roles.negatives))
    if as_matches:
        _refuse_unread_verdicts(name, source, file, table, unread)
        _refuse_unread_negatives(name, source, file, table, unread)
    negative_count = _wanted(source, roles)
    positives = several_positives(_named_pairs(file, table, roles))
    skipped: Counter[str] = Counter()
    unique: dict[tuple[str, ...], Example] = {}
    for line, row in table:
        # by row, so that other rows do not change what is drawn for this one
        generator = random.Random(f"{seed}:{name}:{line}")
        for texts in _row_examples(file, line, row, roles, negative_count, positives, generator, skipped):
            if texts in unique:  # the two would be each other's false negative
                skipped["repeated"] += 1
            else:
                unique[texts] = Example(line, texts)
    negative_names = ["negative"] if negative_count == 1 else [f"negative_{number}" for number in range(1, negative_count + 1)]
    dataset = data_set(
        name, "pairs", ("anchor", "positive", *negative_names), list(unique.values()), source, seed, skipped, file
    )
    return replace(dataset, positives=positives, unread=unread)


def read_any(name: str, source: DataSource, root: Path, seed: int) -> DataSet:
    """The pairs of a source, or its sentences if it has a text column. The texts of a pair need not match."""
    file, table = read_table(source, root)
    if _text_columns(file, source, table) == ("text",):
        return sentences_of(name, source, file, table, seed)
    return pairs_of(name, source, file, table, seed, as_matches=False)


def read_whole(name: str, source: DataSource, root: Path) -> DataSet:
    """All texts of a source, to be searched: as `read_any`, but every row with all of its negatives. Nothing is drawn or left out."""
    file, table = read_table(source, root)
    if _text_columns(file, source, table) == ("text",):
        return sentences_of(name, source, file, table, seed=0)
    roles = _pair_roles(file, table)
    examples = []
    for line, row in table:
        anchor = text_of(file, line, row, roles.anchor)
        negatives = [column for column in roles.negatives if row.get(column) is not None]
        pool = [text for column in negatives for text in _strings(file, line, row, column, empty=False)]
        positives = _strings(file, line, row, roles.positive, empty=False) or [anchor]
        examples += [Example(line, (anchor, positive, *pool)) for positive in positives]
    longest = max(len(example.texts) for example in examples)
    columns = ("anchor", "positive", *("negative" for _ in range(2, longest)))
    plain = _without_titles(file, examples)
    unread = unread_columns(source, table, (roles.anchor, roles.positive, *roles.negatives))
    return DataSet(name, "pairs", columns, examples, source, content_hash(columns, examples), {}, plain=plain, unread=unread)


def data_set(
    name: str,
    kind: Literal["sentences", "pairs"],
    columns: tuple[str, ...],
    examples: list[Example],
    source: DataSource,
    seed: int,
    skipped: Counter[str],
    file: Path,
) -> DataSet:
    """A data set of at most `limit` of the examples, in the order of the file."""
    if not examples:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
        raise UnmaskError(f"data set '{name}': all rows of {file} were left out: {reasons}.")
    plain = _without_titles(file, examples)
    if source.limit is not None and source.limit < len(examples):
        sample = random.Random(seed).sample(range(len(examples)), source.limit)
        examples = [examples[index] for index in sorted(sample)]
    return DataSet(name, kind, columns, examples, source, content_hash(columns, examples), dict(skipped), plain=plain)


def _without_titles(file: Path, examples: Sequence[Example]) -> dict[str, str]:
    """Of the texts of a folder that begin with a title: the key of title and text -> the key of the text."""
    if not file.is_dir():
        return {}
    texts = {text.strip() for example in examples for text in example.texts}
    return {text_key(joined): text_key(text) for joined, text in titled_documents(file) if joined.strip() in texts}


def content_hash(columns: tuple[str, ...], examples: Sequence[Example]) -> str:
    """A hash of the data, 16 hex digits: the columns and all texts in their order, with their classes if they have some."""
    classes = [example.classes for example in examples if example.classes]
    used = (columns, [example.texts for example in examples], *([classes] if classes else []))
    return hashlib.sha256(repr(used).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def read_table(source: DataSource, root: Path) -> tuple[Path, list[tuple[int, Row]]]:
    """The rows that `where` keeps, with columns under our names."""
    if "split" in source.model_fields_set:
        refuse_split(source.path, source.split, root)
    file, rows = open_source(source.path, source.split, root)
    table = [(line, row) for line, row in rows if row]
    if not table:
        raise UnmaskError(f"{file} holds no row.")
    for column, value in source.where.items():
        selected = [(line, row) for line, row in table if _satisfies(file, line, row, column, value)]
        if not selected:
            values = ", ".join(sorted({repr(row[column])[:40] for _, row in table})[:5])
            condition = f">= {value.at_least:g}" if isinstance(value, AtLeast) else f"= {value!r}"
            raise UnmaskError(f"{file}: no row is left with {column} {condition}; that column holds {values}.")
        table = selected
    if source.columns:
        table = [(line, _renamed(file, line, row, source.columns)) for line, row in table]
    return file, table


def _value(file: Path, line: int, row: Row, column: str) -> object:
    if column not in row:
        raise UnmaskError(f"{file}, line {line}: column '{column}' is missing; there is {', '.join(row)}.")
    return row[column]


def _satisfies(file: Path, line: int, row: Row, column: str, condition: Condition) -> bool:
    value = _value(file, line, row, column)
    if isinstance(condition, AtLeast):
        return task_columns.number(file, line, row, column) >= condition.at_least
    return any(_same(value, allowed) for allowed in (condition if isinstance(condition, tuple) else (condition,)))


def _same(value: object, allowed: str | float | bool) -> bool:
    """Whether a value is the one of the recipe: 1 is not true, and csv files hold numbers as text."""
    if isinstance(value, str):
        return value == str(allowed)
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def _renamed(file: Path, line: int, row: Row, columns: dict[str, str]) -> Row:
    renamed = {role: _value(file, line, row, column) for role, column in columns.items()}
    assigned = set(columns.values())
    return {**{column: value for column, value in row.items() if column not in assigned}, **renamed}


def _text_columns(file: Path, source: DataSource, table: Sequence[tuple[int, Row]]) -> tuple[str, ...]:
    paired = {"anchor", "positive"} <= set(source.columns)
    if "text" in table[0][1] and not paired:
        return ("text",)
    roles = _pair_roles(file, table)
    return (roles.anchor, roles.positive, *roles.negatives)


def pair_columns(row: Row) -> tuple[str, str] | None:
    """The columns of anchor and positive by their names; None if a row has none that are known."""
    pairs = ((anchor, partner) for anchor, partners in PARTNERS.items() for partner in partners)
    return next(((anchor, partner) for anchor, partner in pairs if anchor in row and partner in row), None)


def _pair_roles(file: Path, table: Sequence[tuple[int, Row]]) -> _Roles:
    """The columns of a pair by their names: anchor and positive of the first row, and the negatives that any row has.

    Raises UnmaskError that says how to name them if there are none.
    """
    row = table[0][1]
    columns_of_pair = pair_columns(row)
    if columns_of_pair is None:
        allowed = "; ".join(f"{anchor} with {' or '.join(partners)}" for anchor, partners in PARTNERS.items())
        raise UnmaskError(
            f"{file} has the columns {', '.join(row)}, and none of these pairs of columns is among them: {allowed}. "
            'Name the columns: columns = {anchor = "...", positive = "..."}, {text = "...", label = "..."} for texts with labels, '
            'or {text = "..."} for sentences.'
        )
    kinds = {
        (column, type(value))
        for _, row in table
        for column, value in row.items()
        if column.startswith("negative") and value is not None
    }
    for column in ("negatives", "negative"):
        if (column, list) in kinds:
            return _Roles(*columns_of_pair, (column,), listed=True)
    present = {column for column, _ in kinds}
    numbered = (column for column in present if column.startswith("negative_") and column.removeprefix("negative_").isdecimal())
    columns = sorted(numbered, key=lambda column: int(column.removeprefix("negative_")))
    return _Roles(*columns_of_pair, ("negative",) if "negative" in present else tuple(columns))


def unread_columns(source: DataSource, table: Sequence[tuple[int, Row]], used: Iterable[str]) -> tuple[str, ...]:
    """The columns that are neither read nor named in `where`, in the order of the file."""
    used_columns = {*used, *source.where}
    return tuple(
        column for column in dict.fromkeys(name for _, row in table for name in row) if column and column not in used_columns
    )


def _refuse_unread_verdicts(
    name: str, source: DataSource, file: Path, table: Sequence[tuple[int, Row]], unread: Sequence[str]
) -> None:
    """Raise UnmaskError if an unread column may say that the texts of a pair do not match, and `where` names no such column."""
    if any(_is_verdict(column, _values(table, column)) for column in source.where):
        return
    for column in unread:
        values = _values(table, column)
        if _is_verdict(column, values):
            listed = sorted(set(map(str, values)))
            examples = ", ".join(listed[:5]) + (", ..." if len(listed) > 5 else "")
            raise UnmaskError(
                f"data set '{name}': the column '{column}' of {file} ({examples}) may say that a pair does not match, and all rows would "
                f"be trained as pairs that match. Choose rows by it: {_example_of_where(column, values)} in a recipe, or --where with "
                "unmask mine. A list keeps several values."
            )


def _values(table: Sequence[tuple[int, Row]], column: str) -> list[Any]:
    return [row[column] for _, row in table if row.get(column) not in (None, "")]


def _is_verdict(column: str, values: Sequence[Any]) -> bool:
    if not values or not all(isinstance(value, Value) for value in values):
        return False  # a list of scores belongs to several texts
    if any(isinstance(value, bool) for value in values):
        return True
    texts = {value.casefold() for value in values if isinstance(value, str)}
    names_classes = len(texts) <= _FEW and all(len(text) <= _SHORT for text in texts)
    if texts & _VERDICT_VALUES and names_classes:
        return True
    words = {word.casefold() for word in re.findall(r"[A-Z]*[a-z]+|[A-Z]+", column)}
    return bool(words & _VERDICT_NAMES) and (names_classes or all(map(_is_number, texts)))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _example_of_where(column: str, values: Sequence[Any]) -> str:
    numbers = [float(value) for value in values if _is_number(str(value))]
    if len(numbers) == len(values) and len(set(numbers)) > 2:
        return f"where = {{ {column} = {{ at_least = {max(numbers):g} }} }}"
    value = next((value for value in values if str(value).casefold() in _MATCHING), values[0])
    return f"where = {{ {column} = {json.dumps(value)} }}"


_MATCHING: Final = frozenset({"1", "true", "yes", "entailment", "duplicate", "paraphrase", "supports", "support"})


def _refuse_unread_negatives(
    name: str, source: DataSource, file: Path, table: Sequence[tuple[int, Row]], unread: Sequence[str]
) -> None:
    """Raise UnmaskError if an unread column looks like negatives, unless the source wants none."""
    if source.negatives == 0:
        return
    for column in unread:
        kinds = {type(entry) for value in _values(table, column) for entry in (value if isinstance(value, list) else [value])}
        if _NEGATIVE_NAME.search(column) and kinds & {str, dict}:
            role = "negatives" if any(isinstance(value, list) for value in _values(table, column)) else "negative"
            raise UnmaskError(
                f"data set '{name}': the column '{column}' of {file} looks like negatives and is not read. Name it, such as columns = "
                f'{{ {role} = "{column}" }} (negative_1, negative_2 and so on for several columns), or set negatives = 0.'
            )


def _require_read(name: str, source: DataSource, file: Path, roles: _Roles) -> None:
    """Raise UnmaskError for a column that the recipe names and that is not read."""
    used = {roles.anchor, roles.positive, *roles.negatives}
    if not {"anchor", "positive"} <= source.columns.keys():
        used.add("text")  # of another stage on the same data, which reads single texts
    if unread := [role for role in source.columns if role not in used]:
        negatives = f", with {', '.join(roles.negatives)}" if roles.negatives else ", without negatives"
        raise UnmaskError(
            f"data set '{name}': columns.{unread[0]} would change nothing: {file} is read by its columns {roles.anchor} and "
            f"{roles.positive}{negatives}. A column of negatives holds lists; a single negative is called negative."
        )


def _wanted(source: DataSource, roles: _Roles) -> int:
    """Number of negatives of an example."""
    if roles.listed:
        return 1 if source.negatives is None else source.negatives
    present = len(roles.negatives)
    return present if source.negatives is None else min(source.negatives, present)


def _named_pairs(file: Path, table: Sequence[tuple[int, Row]], roles: _Roles) -> Iterator[tuple[str, str]]:
    """Every anchor with every positive that a row gives it."""
    for line, row in table:
        anchor = text_of(file, line, row, roles.anchor)
        for positive in _strings(file, line, row, roles.positive, empty=False):
            yield anchor, positive


def _row_examples(
    file: Path,
    line: int,
    row: Row,
    roles: _Roles,
    count: int,
    positives: Positives,
    generator: random.Random,
    skipped: Counter[str],
) -> Iterator[tuple[str, ...]]:
    """The examples of a row: one for each positive, with its negatives. positives: of the anchors that have several."""
    anchor = text_of(file, line, row, roles.anchor)
    columns = roles.negatives if roles.listed and count else roles.negatives[:count]
    of_column = {column: _strings(file, line, row, column, empty=False) for column in columns}
    for column, texts in of_column.items():
        if len(texts) > 1 and not roles.listed:
            raise UnmaskError(f"{file}, line {line}, column '{column}': expected one text, found a list of {len(texts)}.")
    pool = [text for texts in of_column.values() for text in texts]
    if roles.listed:
        first = {text_key(text): text for text in reversed(pool)}
        pool = [first[key] for key in dict.fromkeys(map(text_key, pool))]  # each text once, as it stands there first
    exact, keys = {text.strip() for text in pool}, {text_key(text) for text in pool}
    of_row = _strings(file, line, row, roles.positive, empty=False)
    if not of_row:
        skipped["no positive"] += 1
    for positive in of_row:
        if positive.strip() in exact and count:
            raise UnmaskError(f"{file}, line {line}: a negative is equal to the positive {positive[:40]!r}.")
        other_positives = positives.get(text_key(anchor), frozenset()) - {text_key(positive)} if count else frozenset()
        negatives = [text for text in pool if text_key(text) not in other_positives] if other_positives else pool
        if positive.strip() == anchor.strip():
            skipped["anchor equal to its positive"] += 1
        elif text_key(anchor) in keys and count:
            skipped["anchor equal to a negative"] += 1
        elif text_key(positive) in keys and count:
            skipped["positive equal to a negative but for case, spaces and punctuation"] += 1
        elif len(pool) < count:
            skipped["too few negatives"] += 1
        elif len(negatives) < count:
            skipped["negative that is a positive in another row"] += 1
        else:
            yield (anchor, positive, *(generator.sample(negatives, count) if roles.listed else negatives))


def _strings(file: Path, line: int, row: Row, column: str, empty: bool = True) -> list[str]:
    """The text or the texts of a column."""
    value: Any = field(file, line, row, column, (str, list))
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if not isinstance(text, str):
            raise UnmaskError(f"{file}, line {line}, column '{column}': expected texts, found {type(text).__name__}.")
        if not empty and not text.strip():
            raise UnmaskError(f"{file}, line {line}, column '{column}' is empty.")
    return texts


def text_of(file: Path, line: int, row: Row, column: str) -> str:
    """A text that is not empty. Raises UnmaskError with file and line."""
    text = str(field(file, line, row, column))
    if not text.strip():
        raise UnmaskError(f"{file}, line {line}, column '{column}' is empty.")
    return text
