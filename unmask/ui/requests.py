"""Requests: what the page may ask for. A body that is something else is refused in one sentence."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from unmask.errors import first_problem
from unmask.server.protocol import ApiError

MOST_TEXTS = 30
MOST_CHARACTERS = 20_000

Name = Annotated[StrictStr, Field(min_length=1, max_length=2000)]
Text = Annotated[StrictStr, Field(min_length=1, max_length=MOST_CHARACTERS)]


class Body(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CompareRequest(Body):
    """Texts under one design or two."""

    designs: Annotated[list[Name], Field(min_length=1, max_length=2)]
    texts: Annotated[list[Text], Field(min_length=2, max_length=MOST_TEXTS)]


class TextRequest(Body):
    """One text under one design or two."""

    designs: Annotated[list[Name], Field(min_length=1, max_length=2)]
    text: Text


class CorpusRequest(Body):
    """A question about the corpus. corpus: which of those opened so far, from 1."""

    corpus: StrictInt


class MapRequest(CorpusRequest):
    """The map of the corpus under a design."""

    design: Name
    layout: Literal["pca", "t-sne"] = "pca"


class NeighboursRequest(CorpusRequest):
    """The neighbours of a text of the corpus under a design."""

    design: Name
    place: StrictInt


class SearchRequest(CorpusRequest):
    """Texts of the corpus that contain a string."""

    query: Annotated[StrictStr, Field(max_length=1000)]


class NearestRequest(CorpusRequest):
    """Texts of the corpus that are most similar to a query under a design."""

    design: Name
    query: Annotated[StrictStr, Field(min_length=1, max_length=1000)]


Wanted = TypeVar("Wanted", bound=Body)


def parse(kind: type[Wanted], body: bytes) -> Wanted:
    """The request of a body. Raises ApiError with status 400."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise ApiError(400, _SENTENCES.get(error.errors()[0]["loc"][:1], "") or f"{first_problem(error)}.") from None


_SENTENCES: dict[tuple[int | str, ...], str] = {
    ("texts",): f"Give 2 to {MOST_TEXTS} texts, one on each line, of at most {MOST_CHARACTERS} characters each.",
    ("text",): f"Give a text of 1 to {MOST_CHARACTERS} characters.",
    ("designs",): "Name one design or two.",
}
