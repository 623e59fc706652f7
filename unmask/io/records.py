"""Records: typed JSON files with a checksum, in which a run notes what it was started with and what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from unmask.errors import UnmaskError, first_problem
from unmask.io.seals import read_record, write_record


class Record(BaseModel):
    """A record with a checksum. Keys that another version wrote are ignored."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """The record in a file; None if there is no such file, and None with a warning if it is damaged.

        Raises UnmaskError for a file with another content.
        """
        content = read_record(file)
        return None if content is None else cls.parse(content, file)

    @classmethod
    def parse(cls, content: dict[str, Any], file: Path) -> Self:
        """The record that has this content. Raises UnmaskError, which names the file, for another content."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise UnmaskError(f"'{file}' is not what this version of unmask wrote: {first_problem(error)}.") from error

    def as_json(self) -> dict[str, Any]:
        """The content of the file, without its checksum."""
        return self.model_dump(mode="json", by_alias=True)

    def write(self, file: Path) -> None:
        """Write the record, whole and durable."""
        write_record(file, self.as_json())
