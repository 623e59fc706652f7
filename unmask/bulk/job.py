"""Jobs: what to embed, how, and where the vectors go."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.bulk.vector_writers import CHUNK_COLUMNS, WRITERS
from unmask.encoding.chunking import Chunking
from unmask.errors import UnmaskError
from unmask.io.files import check_output
from unmask.io.rows import has_no_columns
from unmask.io.sources import find_files

if TYPE_CHECKING:
    from unmask.encoding.quantization import Precision

SHARD_ROWS = 50_000
"""Most rows of a shard, unless the user says otherwise: some minutes of a GPU, some megabytes of vectors."""
LONGEST = 4_000_000
"""Most bytes of a line: longer than War and Peace. Memory holds the tokens of one such text."""
_WITHOUT_COLUMNS = (".npy",)
_ALWAYS_RECORDED = frozenset(
    ("column", "id_column", "instruction", "dim", "normalize", "precision", "keep", "shard_rows", "chunk", "overlap", "late")
)
"""Options that manifests record even if they have their default. Do not add newer ones: see `EmbedJob.options`."""


@dataclass(frozen=True)
class EmbedJob:
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
        """The options that the output depends on, for manifests.

        A newer option is recorded only if it differs from its default, so that a folder made before the option existed can be continued.
        """
        excluded = {"inputs", "output"} | (set() if self.to_folder else {"shard_rows"})
        options = {
            option.name: getattr(self, option.name)
            for option in fields(self)
            if option.name in _ALWAYS_RECORDED or getattr(self, option.name) != option.default
        }
        return {name: value for name, value in options.items() if name not in excluded} | {"keep": list(self.keep)}

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [self.column, *([self.id_column] if self.id_column else []), *self.keep]

    def for_file(self, file: Path) -> EmbedJob:
        """The job with the columns of one of its files: in a .txt, each line is a text, whatever columns the other files have."""
        return replace(self, column="text", id_column=None) if has_no_columns(file) else self

    def files(self) -> list[Path]:
        """The files to read. Raises UnmaskError for mistakes in the job that can be seen without reading the files through."""
        self._check_columns()
        if not self.to_folder:
            check_output(self.manifest, self.inputs)
        check_output(self.output, self.inputs, folder=self.to_folder)
        matches = find_files(self.inputs, self.output)
        # next to its manifest, the output is what this command wrote before
        is_new = not self.to_folder and self.output.exists() and not self.manifest.exists()
        if is_new and any(file.samefile(self.output) for file in find_files(self.inputs)):
            raise UnmaskError(f"'{self.output}' is a file of the input, and the output would overwrite it: give another.")
        if not self.to_folder and len(matches) > 1:
            raise UnmaskError(
                f"The input is {len(matches)} files, and '{self.output}' is one file: give a folder for the vectors, which is a name "
                "without an ending."
            )
        for file in matches:
            if not str(file).isascii() and str(file).encode("utf-8", "replace") != str(file).encode("utf-8", "surrogateescape"):
                raise UnmaskError(f"The name {str(file)!r} is not UTF-8, and ids are made of it: rename the file.")
        return matches

    def _check_columns(self) -> None:
        ending = self.output.suffix
        if not self.to_folder and ending not in WRITERS:
            raise UnmaskError(
                f"'{self.output}': vectors are written to {', '.join(WRITERS)}, not '{ending}'. The name of a folder has no ending."
            )
        if ending in _WITHOUT_COLUMNS:
            for option, is_set in (("--id-column", self.id_column), ("--keep", self.keep), ("--chunk", self.chunk)):
                if is_set:
                    raise UnmaskError(f"A {ending} file holds vectors only; write parquet or jsonl, or leave {option} out.")
        for name in self.keep:
            if name in ("id", "vector", *(CHUNK_COLUMNS if self.chunk else ())):
                raise UnmaskError(f"--keep {name}: the output has a column '{name}' of its own. Rename yours.")
        if len(set(self.keep)) < len(self.keep):
            raise UnmaskError(f"--keep {','.join(self.keep)} names a column twice.")
