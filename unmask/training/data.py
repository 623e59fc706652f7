"""Training data: sentences, pairs and triples from files. Every row is checked before training starts."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from unmask.errors import UnmaskError
from unmask.io.rows import Row, field
from unmask.tasks import columns as task_columns
from unmask.training.sources import open_rows, refuse_split
from unmask.training.text_keys import Positives, several_positives, text_key

# an anchor's column -> the columns that may hold its positive, the likeliest first
PARTNERS: Final[dict[str, tuple[str, ...]]] = {
    "anchor": ("positive",),
    "query": ("positive", "passage", "document", "context", "answer"),
    "question": ("positive", "context", "passage", "answer"),
    "sentence1": ("positive", "sentence2"),
    "premise": ("positive", "hypothesis"),
}
_ROLES: Final = ("text", "label", "answer", "anchor", "positive", "score", "negative", "negatives")

# Words in the name of a column, or values of it, that say whether or how much the texts of a pair match. Such a column turns some rows
# into the opposite of training pairs.
_VERDICT_NAME: Final = re.compile(
    "labels?|gold|scores?|similarity|relatedness|entailment|contradiction|duplicate|paraphrase|relevance|relevant|rating|grade|judge?ment|"
    "match|correct|equivalen(t|ce)|verdict|stance|quality|answerable|impossible|target|class"
)
_VERDICT_VALUE: Final = re.compile(
    "((not_)?(entailment|duplicate|paraphrase))|contradiction|neutral|supports?|refutes?|yes|no|true|false"
)
_NEGATIVE_NAME: Final = re.compile(r"(?:^|[^a-z])(?:neg|negs|negative|negatives)(?![a-z])|[Nn]eg(?:ative)?s?$")
_FEW, _SHORT = 20, 40  # a column of classes has few distinct values, and short ones

Value = str | int | float | bool


class AtLeast(BaseModel):
    """A condition on a column of numbers: `where = { score = { at_least = 4 } }`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_least: float


Condition = Value | tuple[Value, ...] | AtLeast


class DataSource(BaseModel):
    """One [data.NAME] table of a recipe: where rows come from, which rows to use, and what their columns mean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    """A file (jsonl, json, parquet, feather, csv, tsv, txt), a folder of queries and documents, hub:REPO[:CONFIG], starter:reference,
    starter:pairs or starter:labels."""
    columns: dict[str, str] = {}
    """Our name of a column -> the file's name."""
    split: str = "train"
    """Of a hub data set, or of a folder's relevance judgements."""
    instruction: str | None = None
    document_instruction: str | None = None
    limit: int | None = Field(default=None, ge=1)
    weight: float | None = Field(default=None, gt=0)
    """Batches from the set, relative to the weights of the stage's other sets. By default its number of examples."""
    where: dict[str, Condition] = {}
    """Use only rows in which these columns have a value, one of several values, or at least a number."""
    negatives: int | None = Field(default=None, ge=0)
    """Most negatives of an example. By default all columns, or one of a list or of other labels."""

    @field_validator("columns")
    @classmethod
    def _check_roles(cls, columns: dict[str, str]) -> dict[str, str]:
        for role in columns:
            if role not in _ROLES and not role.startswith("negative_"):
                raise ValueError(f"'{role}' is none of {', '.join(_ROLES)}, negative_1, negative_2 and so on")
        extra_columns = columns.keys() - {"text", "label"}
        if "label" in columns and extra_columns:
            raise ValueError(
                f"a label goes with a text, and not with {', '.join(sorted(extra_columns))}: name text and label only"
            )
        if "score" in columns and (negatives := sorted(role for role in columns if role.startswith("negative"))):
            raise ValueError(f"pairs with a score have no negatives: leave out {', '.join(negatives)}")
        return columns


@dataclass(frozen=True)
class Example:
    """One sentence (1 text) or one pair (anchor, positive, negatives).

    row: its line in the file. classes: the class of each text, as an index; empty without labels. score: how similar a pair is, in any
    unit; None if it is just a positive pair.
    """

    row: int
    texts: tuple[str, ...]
    classes: tuple[int, ...] = ()
    score: float | None = None


@dataclass(frozen=True)
class DataSet:
    """Checked examples of one source.

    skipped: reason -> rows left out. positives: for anchors with several positives, all that the source names, also in rows that are not
    among the examples. unread: columns of the file that nothing was read from.
    """

    name: str
    columns: tuple[str, ...]
    examples: list[Example]
    source: DataSource
    skipped: dict[str, int]
    positives: Positives = dataclass_field(default_factory=dict)
    unread: tuple[str, ...] = ()

    @property
    def kind(self) -> Literal["sentences", "pairs"]:
        """Whether an example is one text or a pair, possibly with negatives."""
        return "sentences" if self.columns == ("text",) else "pairs"

    @property
    def summary(self) -> str:
        """Number of examples, rows left out and columns not read, in one line."""
        left_out = "".join(f", {count} {reason} left out" for reason, count in self.skipped.items())
        unread = f" (columns not read: {', '.join(self.unread)})" if self.unread else ""
        return f"{self.name}: {len(self.examples)} {self.kind}{left_out}{unread}"

    @cached_property
    def revision(self) -> str:
        """A hash of the columns and of all texts in order, with their classes or scores if they have some; 16 hex digits."""
        classes = [example.classes for example in self.examples if example.classes]
        scores = [example.score for example in self.examples if example.score is not None]
        content = (self.columns, [example.texts for example in self.examples], *(part for part in (classes, scores) if part))
        return hashlib.sha256(repr(content).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class SourceTable:
    """The rows of a source that `where` selects, with their lines, and with columns under our names."""

    name: str
    source: DataSource
    seed: int
    file: Path
    rows: Sequence[tuple[int, Row]]

    def text(self, line: int, row: Row, column: str) -> str:
        """A text that is not empty. Raises UnmaskError with file and line."""
        text = str(field(self.file, line, row, column))
        if not text.strip():
            raise UnmaskError(f"{self.file}, line {line}, column '{column}' is empty.")
        return text

    def texts(self, line: int, row: Row, column: str, empty: bool = False) -> list[str]:
        """The text of a column as a list, or its list of texts. empty: allow empty texts."""
        value: Any = field(self.file, line, row, column, (str, list))
        texts = value if isinstance(value, list) else [value]
        for text in texts:
            if not isinstance(text, str):
                raise UnmaskError(f"{self.file}, line {line}, column '{column}': expected texts, found {type(text).__name__}.")
            if not empty and not text.strip():
                raise UnmaskError(f"{self.file}, line {line}, column '{column}' is empty.")
        return texts

    def values(self, column: str) -> list[Any]:
        """The values of a column that are not empty."""
        return [row[column] for _, row in self.rows if row.get(column) not in (None, "")]

    def unread(self, used: Iterable[str]) -> tuple[str, ...]:
        """The columns that are neither used nor named in `where`, in the order of the file."""
        names = dict.fromkeys(name for _, row in self.rows for name in row)
        return tuple(name for name in names if name and name not in {*used, *self.source.where})

    def data_set(
        self,
        columns: tuple[str, ...],
        examples: Iterable[Example],
        skipped: Mapping[str, int],
        used: Iterable[str],
        positives: Positives | None = None,
    ) -> DataSet:
        """A data set of at most `limit` of the examples, in the order of the file. used: the columns that they were read from."""
        examples = list(examples)
        if not examples:
            reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
            raise UnmaskError(f"data set '{self.name}': all rows of {self.file} were left out: {reasons}.")
        limit = self.source.limit
        if limit is not None and limit < len(examples):
            sample = random.Random(self.seed).sample(range(len(examples)), limit)
            examples = [examples[index] for index in sorted(sample)]
        return DataSet(
            self.name,
            columns=columns,
            examples=examples,
            source=self.source,
            skipped=dict(skipped),
            positives=positives or {},
            unread=self.unread(used),
        )


def columns_of_pairs(negatives: int) -> tuple[str, ...]:
    """The columns of pairs with this number of negatives."""
    numbered = [f"negative_{number}" for number in range(1, negatives + 1)]
    return ("anchor", "positive", *(["negative"] if negatives == 1 else numbered))


def read_sentences(name: str, source: DataSource, root: Path, seed: int) -> DataSet:
    """All texts of a source: its `text` column or, without one, all texts of its pairs.

    Empty and repeated texts are left out and counted. Raises UnmaskError with file and line for a row without text.
    """
    return _read_sentences(read_table(name, source, root, seed))


def read_pairs(name: str, source: DataSource, root: Path, seed: int) -> DataSet:
    """Pairs or triples of a source, one for each positive of an anchor.

    Left out and counted: anchors equal to their positive, repeated rows, rows without a positive or with too few negatives, and rows
    with a negative that is a positive of the same anchor. Raises UnmaskError with file and line for a text that is missing, empty or
    not a string, for a column that the recipe names but does not need, and for an unread column that may change what a row means.
    """
    return pairs_of(read_table(name, source, root, seed))


def read_texts_or_pairs(name: str, source: DataSource, root: Path, seed: int) -> DataSet:
    """The pairs of a source, or its sentences if it has a text column. The texts of a pair need not match."""
    table = read_table(name, source, root, seed)
    return _read_sentences(table) if _text_columns(table) == ("text",) else pairs_of(table, as_matches=False)


def read_answers(name: str, source: DataSource, root: Path, seed: int) -> DataSet:
    """Texts with answers, from the columns `text` and `answer`. Rows without an answer are left out and counted.

    Raises UnmaskError with file and line for a missing column, and for an empty text.
    """
    table = read_table(name, source, root, seed)
    examples, empty = [], 0
    for line, row in table.rows:
        text, answer = table.text(line, row, "text"), str(field(table.file, line, row, "answer"))
        if answer.strip():
            examples.append(Example(line, (text, answer)))
        else:
            empty += 1
    return table.data_set(("text", "answer"), examples, {"without an answer": empty} if empty else {}, ("text", "answer"))


def read_all_rows(name: str, source: DataSource, root: Path) -> DataSet:
    """All texts of a source, to be searched: every row, with all of its negatives. Nothing is sampled or left out."""
    table = read_table(name, source, root, 0)
    if _text_columns(table) == ("text",):
        return _read_sentences(table)
    roles = _pair_roles(table)
    examples = []
    for line, row in table.rows:
        anchor = table.text(line, row, roles.anchor)
        present = [column for column in roles.negatives if row.get(column) is not None]
        negatives = [text for column in present for text in table.texts(line, row, column)]
        for positive in table.texts(line, row, roles.positive) or [anchor]:
            examples.append(Example(line, (anchor, positive, *negatives)))
    longest = max(len(example.texts) for example in examples)
    return table.data_set(("anchor", "positive", *["negative"] * (longest - 2)), examples, {}, roles.columns)


def read_table(name: str, source: DataSource, root: Path, seed: int) -> SourceTable:
    """The rows that `where` selects, with columns under our names."""
    if "split" in source.model_fields_set:
        refuse_split(source.path, source.split, root)
    file, rows = open_rows(source.path, source.split, root)
    selected = [(line, row) for line, row in rows if row]
    if not selected:
        raise UnmaskError(f"{file} holds no row.")
    for column, condition in source.where.items():
        candidates = selected
        selected = [(line, row) for line, row in candidates if _satisfies(file, line, row, column, condition)]
        if not selected:
            values = ", ".join(sorted({repr(row[column])[:40] for _, row in candidates})[:5])
            requirement = f">= {condition.at_least:g}" if isinstance(condition, AtLeast) else f"= {condition!r}"
            raise UnmaskError(f"{file}: no row is left with {column} {requirement}; that column holds {values}.")
    mapped = set(source.columns.values())
    renamed = [
        (
            line,
            {column: value for column, value in row.items() if column not in mapped}
            | {role: _require_value(file, line, row, column) for role, column in source.columns.items()},
        )
        for line, row in selected
    ]
    return SourceTable(name, source, seed, file, renamed)


def _require_value(file: Path, line: int, row: Row, column: str) -> object:
    if column not in row:
        raise UnmaskError(f"{file}, line {line}: column '{column}' is missing; there is {', '.join(row)}.")
    return row[column]


def _satisfies(file: Path, line: int, row: Row, column: str, condition: Condition) -> bool:
    value = _require_value(file, line, row, column)
    if isinstance(condition, AtLeast):
        return task_columns.number(file, line, row, column) >= condition.at_least
    for allowed in condition if isinstance(condition, tuple) else (condition,):
        # csv files hold numbers as text; and in Python 1 == True
        if (
            value == str(allowed)
            if isinstance(value, str)
            else value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
        ):
            return True
    return False


def _read_sentences(table: SourceTable) -> DataSet:
    columns = _text_columns(table)
    skipped: Counter[str] = Counter()
    unique: dict[str, Example] = {}
    for line, row in table.rows:
        for column in columns:
            for text in map(str.strip, table.texts(line, row, column, empty=True)):
                if not text:
                    skipped["empty"] += 1
                elif text in unique:
                    skipped["repeated"] += 1
                else:
                    unique[text] = Example(line, (text,))
    return table.data_set(("text",), unique.values(), skipped, columns)


def _text_columns(table: SourceTable) -> tuple[str, ...]:
    is_mapped_pair = {"anchor", "positive"} <= set(table.source.columns)
    return ("text",) if "text" in table.rows[0][1] and not is_mapped_pair else _pair_roles(table).columns


def pairs_of(table: SourceTable, *, as_matches: bool = True) -> DataSet:
    """As `read_pairs`, of a table. as_matches: whether training takes both texts of a pair for a match."""
    roles, source = _pair_roles(table), table.source
    _refuse_unused_names(table, roles, () if as_matches else ("score",))
    if as_matches:
        _refuse_unread(table, table.unread(roles.columns))
    default = 1 if roles.listed else len(roles.negatives)
    count = default if source.negatives is None else source.negatives if roles.listed else min(source.negatives, default)
    names = [
        (table.text(line, row, roles.anchor), positive)
        for line, row in table.rows
        for positive in table.texts(line, row, roles.positive)
    ]
    several = several_positives(names)
    skipped: Counter[str] = Counter()
    unique: dict[tuple[str, ...], Example] = {}
    for line, row in table.rows:
        # seeded by row, so that other rows do not change what is sampled for this one
        generator = random.Random(f"{table.seed}:{table.name}:{line}")
        anchor, positives = table.text(line, row, roles.anchor), table.texts(line, row, roles.positive)
        pool = _negatives(table, line, row, roles, count)
        keys = set(map(text_key, pool))
        if not positives:
            skipped["no positive"] += 1
        for positive in positives:
            other_positives = several.get(text_key(anchor), frozenset()) - {text_key(positive)}
            negatives = [text for text in pool if text_key(text) not in other_positives]
            if positive.strip() == anchor.strip():
                skipped["anchor equal to its positive"] += 1
            elif text_key(anchor) in keys:
                skipped["anchor equal to a negative"] += 1
            elif text_key(positive) in keys:
                skipped["positive equal to a negative"] += 1
            elif len(pool) < count:
                skipped["too few negatives"] += 1
            elif len(negatives) < count:
                skipped["negative that is a positive in another row"] += 1
            else:
                texts = (anchor, positive, *(generator.sample(negatives, count) if roles.listed else negatives))
                if texts in unique:  # the two would be each other's false negative
                    skipped["repeated"] += 1
                else:
                    unique[texts] = Example(line, texts)
    return table.data_set(columns_of_pairs(count), unique.values(), skipped, roles.columns, several)


def _negatives(table: SourceTable, line: int, row: Row, roles: _PairRoles, count: int) -> list[str]:
    """The texts that the negatives of a row are taken from."""
    if not roles.listed:
        texts_by_column = {column: table.texts(line, row, column) for column in roles.negatives[:count]}
        for column, texts in texts_by_column.items():
            if len(texts) > 1:
                raise UnmaskError(
                    f"{table.file}, line {line}, column '{column}': expected one text, found a list of {len(texts)}."
                )
        return [text for texts in texts_by_column.values() for text in texts]
    unique: dict[str, str] = {}
    for text in table.texts(line, row, roles.negatives[0]) if count else ():
        unique.setdefault(text_key(text), text)
    return list(unique.values())


@dataclass(frozen=True)
class _PairRoles:
    """The columns of anchor, positive and negatives. listed: the negatives are one column that holds lists."""

    anchor: str
    positive: str
    negatives: tuple[str, ...] = ()
    listed: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.anchor, self.positive, *self.negatives)


def pair_columns(row: Row) -> tuple[str, str] | None:
    """The columns of anchor and positive by their names; None if a row has no such columns."""
    pairs = ((anchor, partner) for anchor, partners in PARTNERS.items() for partner in partners)
    return next(((anchor, partner) for anchor, partner in pairs if anchor in row and partner in row), None)


def _pair_roles(table: SourceTable) -> _PairRoles:
    """The columns of a pair by their names: anchor and positive of the first row, and the negatives that any row has."""
    first_row = table.rows[0][1]
    pair = pair_columns(first_row)
    if pair is None:
        allowed = "; ".join(f"{anchor} with {' or '.join(partners)}" for anchor, partners in PARTNERS.items())
        raise UnmaskError(
            f"{table.file} has the columns {', '.join(first_row)}, and none of these pairs of columns is among them: {allowed}. "
            'Name the columns: columns = {anchor = "...", positive = "..."}, {text = "...", label = "..."} for texts with labels, '
            'or {text = "..."} for sentences.'
        )
    present: dict[str, bool] = {}  # column -> whether it holds lists
    for _, row in table.rows:
        for column, value in row.items():
            if column.startswith("negative") and value is not None:
                present[column] = present.get(column, False) or isinstance(value, list)
    for column in ("negatives", "negative"):
        if present.get(column):
            return _PairRoles(*pair, (column,), listed=True)
    if "negative" in present:
        return _PairRoles(*pair, ("negative",))
    numbers = sorted(int(column[9:]) for column in present if column.startswith("negative_") and column[9:].isdecimal())
    return _PairRoles(*pair, tuple(f"negative_{number}" for number in numbers))


def _refuse_unused_names(table: SourceTable, roles: _PairRoles, allowed: Sequence[str]) -> None:
    """Raise UnmaskError for a column that the recipe names but that is not read. allowed: columns that need not be read."""
    used = {*roles.columns, *allowed}
    if not {"anchor", "positive"} <= table.source.columns.keys():
        used.add("text")  # of another stage on the same data, which reads single texts
    if unused := [role for role in table.source.columns if role not in used]:
        negatives = f", with {', '.join(roles.negatives)}" if roles.negatives else ", without negatives"
        raise UnmaskError(
            f"data set '{table.name}': columns.{unused[0]} would change nothing: {table.file} is read by its columns {roles.anchor} and "
            f"{roles.positive}{negatives}. A column of negatives holds lists; a single negative is called negative."
        )


def _refuse_unread(table: SourceTable, unread: Sequence[str]) -> None:
    """Raise UnmaskError if an unread column may say that the texts of a pair do not match, or looks like negatives."""
    has_condition = any(_is_verdict(column, table.values(column)) for column in table.source.where)
    for column in unread:
        values = table.values(column)
        if not has_condition and _is_verdict(column, values):
            distinct = sorted(set(map(str, values)))
            examples = ", ".join(distinct[:5]) + (", ..." if len(distinct) > 5 else "")
            raise UnmaskError(
                f"data set '{table.name}': the column '{column}' of {table.file} ({examples}) may say that a pair does not match, and all "
                f"rows would be trained as pairs that match. Select rows by it: where = {{ {column} = {json.dumps(values[0])} }} or "
                f"{{ {column} = {{ at_least = NUMBER }} }} in a recipe, or --where with unmask mine. A list keeps several values."
            )
        kinds = {type(entry) for value in values for entry in (value if isinstance(value, list) else [value])}
        if table.source.negatives != 0 and _NEGATIVE_NAME.search(column) and kinds & {str, dict}:
            role = "negatives" if any(isinstance(value, list) for value in values) else "negative"
            raise UnmaskError(
                f"data set '{table.name}': the column '{column}' of {table.file} looks like negatives and is not read. Name it, such as "
                f'columns = {{ {role} = "{column}" }} (negative_1, negative_2 and so on for several columns), or set negatives = 0.'
            )


def _is_verdict(column: str, values: Sequence[Any]) -> bool:
    if not values or not all(isinstance(value, Value) for value in values):
        return False  # a list of scores belongs to several texts
    texts = {value.casefold() for value in values if isinstance(value, str)}
    words = {word.casefold() for word in re.findall(r"[A-Z]*[a-z]+|[A-Z]+", column)}
    is_categorical = len(texts) <= _FEW and all(len(text) <= _SHORT for text in texts)
    return (
        any(isinstance(value, bool) for value in values)
        or (is_categorical and any(map(_VERDICT_VALUE.fullmatch, texts)))
        or (
            any(map(_VERDICT_NAME.fullmatch, words))
            and (is_categorical or all(re.fullmatch(r"-?\d*\.?\d+", text) for text in texts))
        )
    )
