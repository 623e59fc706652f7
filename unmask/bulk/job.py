"""Jobs: what to embed, how, and where the vectors go."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.bulk.vector_writers import CHUNK_COLUMNS, WRITERS
from unmask.encoding.chunking import Chunking
from unmask.errors import UnmaskError
from unmask.io.files import check_output
from unmask.io.rows import field as value_of
from unmask.io.rows import has_no_columns, read_rows
from unmask.io.sources import find_files

if TYPE_CHECKING:
    from unmask.embedder import Embedder
    from unmask.encoding.quantization import Precision

SHARD_ROWS = 50_000
"""Most rows of a shard, unless the user says otherwise: some minutes of a GPU, some megabytes of vectors."""
LONGEST = 4_000_000
"""Most bytes of a line: longer than War and Peace. Memory holds the tokens of one such text."""
_WITHOUT_COLUMNS = (".npy",)


@dataclass(frozen=True)
class Job:
    """What to embed, and how to write it.

    inputs: files, folders and patterns; output: a file (by its ending), or a folder; keep: columns to write along with the vectors;
    shard_rows: most rows of a file in a folder; chunk, overlap, late: how documents are split, if they are (see Chunking). Raises
    UnmaskError for sizes of chunks that do not work.
    """

    inputs: tuple[Path, ...]
    output: Path
    column: str = "text"
    id_column: str | None = None
    instruction: str | None = None
    dim: int | None = None
    normalize: bool = False
    precision: Precision = "float32"
    keep: tuple[str, ...] = ()
    shard_rows: int = SHARD_ROWS
    chunk: int | None = None
    overlap: int = 0
    late: bool = False

    def __post_init__(self) -> None:
        """Check the sizes of chunks."""
        if self.chunking is None and (self.overlap or self.late):
            raise UnmaskError(
                "Without --chunk there are no chunks, so --overlap and --late would change nothing: give --chunk 256, say."
            )

    @property
    def chunking(self) -> Chunking | None:
        """How documents are split; None if they are not."""
        return None if self.chunk is None else Chunking(self.chunk, self.overlap, self.late)

    @property
    def to_folder(self) -> bool:
        """Whether the vectors go to a folder: its name has no ending."""
        return not self.output.suffix

    @property
    def manifest(self) -> Path:
        """The file that says how the vectors were made."""
        return self.output / "manifest.json" if self.to_folder else Path(f"{self.output}.manifest.json")

    @property
    def options(self) -> dict[str, Any]:
        """The options that the output depends on, for manifests."""
        away = {"inputs", "output"} | (set() if self.to_folder else {"shard_rows"})
        return {name: value for name, value in asdict(self).items() if name not in away} | {"keep": list(self.keep)}

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [self.column, *([self.id_column] if self.id_column else []), *self.keep]

    def for_file(self, file: Path) -> Job:
        """The job with the columns of one of its files: in a .txt, each line is a text, whatever columns the other files have."""
        return replace(self, column="text", id_column=None) if has_no_columns(file) else self

    def files(self) -> list[Path]:
        """The files to read. Raises UnmaskError for mistakes in the job that can be seen without reading the files through."""
        self._check_names()
        if not self.to_folder:
            check_output(self.manifest, self.inputs)
        check_output(self.output, self.inputs, folder=self.to_folder)
        matches = find_files(self.inputs, self.output)
        # with its manifest, it is what this command wrote before
        if not self.to_folder and self.output.exists() and not self.manifest.exists():
            self._refuse_part_of_input()
        if not self.to_folder and len(matches) > 1:
            raise UnmaskError(
                f"The input is {len(matches)} files, and '{self.output}' is one file: give a folder for the vectors, which is a name "
                "without an ending."
            )
        for file in matches:
            if not str(file).isascii() and str(file).encode("utf-8", "replace") != str(file).encode("utf-8", "surrogateescape"):
                raise UnmaskError(f"The name {str(file)!r} is not UTF-8, and ids are made of it: rename the file.")
        return matches

    def _refuse_part_of_input(self) -> None:
        """Raise UnmaskError if the output is a file that a folder or a pattern of the input matches."""
        if any(file.samefile(self.output) for file in find_files(self.inputs)):
            raise UnmaskError(f"'{self.output}' is a file of the input, and the output would overwrite it: give another.")

    def _check_names(self) -> None:
        if not self.to_folder and self.output.suffix not in WRITERS:
            raise UnmaskError(
                f"'{self.output}': vectors are written to {', '.join(WRITERS)}, not '{self.output.suffix}'. The name of a folder has no "
                "ending."
            )
        if self.output.suffix in _WITHOUT_COLUMNS and self.id_column:
            raise UnmaskError(
                f"A {self.output.suffix} file has no room for ids; write parquet or jsonl, or leave --id-column out."
            )
        if self.output.suffix in _WITHOUT_COLUMNS and self.keep:
            raise UnmaskError(
                f"A {self.output.suffix} file has no room for columns; write parquet or jsonl, or leave --keep out."
            )
        if self.output.suffix in _WITHOUT_COLUMNS and self.chunk:
            raise UnmaskError(
                f"A {self.output.suffix} file has no room for the places of chunks; write parquet or jsonl, or leave --chunk out."
            )
        for name in self.keep:
            if name in ("id", "vector", *(CHUNK_COLUMNS if self.chunk else ())):
                raise UnmaskError(f"--keep {name}: the output has a column '{name}' of its own. Rename yours.")
        if len(set(self.keep)) < len(self.keep):
            raise UnmaskError(f"--keep {','.join(self.keep)} names a column twice.")


@dataclass(frozen=True)
class EmbedderArguments:
    """How a process loads the embedder. options: for `Embedder.from_pretrained`; fit_on: texts to fit the design on."""

    model: str
    design: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    fit_on: Path | None = None

    def check(self) -> None:
        """Raise UnmaskError if the texts to fit on cannot be read, or if the model needs the name of a design."""
        from unmask.saving.folder import read_saved

        self.texts_to_fit()
        if not self.design:
            read_saved(self.model, self.options.get("revision"), self.options.get("adapter"), names_design=False)

    def load(self) -> Embedder:
        """The embedder. Raises UnmaskError."""
        from unmask.embedder import Embedder

        texts = self.texts_to_fit()
        embedder = Embedder.from_pretrained(self.model, self.design, **self.options)
        self.require_fit(embedder)
        return embedder if texts is None else embedder.fit(texts)

    def texts_to_fit(self) -> list[str] | None:
        """The texts to fit the design on; None if none are given. Raises UnmaskError."""
        file = self.fit_on
        return None if file is None else [value_of(file, line, row, "text") for line, row in read_rows(file)]

    def require_fit(self, embedder: Embedder) -> None:
        """Raise UnmaskError if there are texts to fit on, and the design has nothing to fit."""
        if self.fit_on is not None and not embedder.design.needs_fit:
            raise UnmaskError(f"'{embedder.design.name}' has nothing to fit, so --fit-on would change nothing.")
