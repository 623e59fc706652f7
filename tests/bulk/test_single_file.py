"""A file of texts becomes a file of the vectors that `encode` gives, with ids, and a manifest that says how."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from tests.conftest import TEXTS
from tests.tiny import write_rows
from unmask.bulk.job import EmbedJob
from unmask.bulk.row_encoder import RowEncoder
from unmask.bulk.single_file import EmbeddedFile, check_file, embed_file
from unmask.bulk.vector_writers import WRITERS
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.models.digests import digest_of_folder


@pytest.fixture(scope="module")
def embedder(pico: Callable[..., Embedder]) -> Embedder:
    return pico("causal/eol/last")


@pytest.fixture
def loaded(pico_folder: Callable[[str], Path]) -> Embedder:
    """An embedder whose model came from a folder."""
    return Embedder.from_pretrained(pico_folder("llama"), "causal/eol/last", dtype="float32", device="cpu")


def texts_in(folder: Path, ending: str = ".jsonl", texts: list[str] = TEXTS) -> Path:
    """A file of texts; where the format has columns, with a column of ids."""
    file = folder / f"texts{ending}"
    if ending == ".txt":
        file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return file
    return write_rows(file, [{"name": f"n{number}", "text": text} for number, text in enumerate(texts)])


def read_vectors(file: Path) -> NDArray[Any]:
    if file.suffix == ".npy":
        return np.asarray(np.load(file))
    if file.suffix == ".jsonl":
        return np.array([json.loads(line)["vector"] for line in file.read_text().splitlines()])
    return np.array(pq.read_table(file)["vector"].to_pylist())


def read_ids(file: Path) -> list[str]:
    if file.suffix == ".jsonl":
        return [json.loads(line)["id"] for line in file.open(encoding="utf-8")]  # splitlines would split at U+2028
    return [str(one) for one in pq.read_table(file)["id"].to_pylist()]


def files_in(folder: Path) -> list[Path]:
    """What lies in a folder, without the locks."""
    return [file for file in folder.iterdir() if file.suffix != ".lock"]


def manifest_of(file: Path) -> dict[str, Any]:
    return dict(json.loads(Path(f"{file}.manifest.json").read_text(encoding="utf-8")))


# --- vectors and ids -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("output", "precision"), [(".npy", "float32"), (".parquet", "float16"), (".jsonl", "int8")])
def test_the_vectors_are_those_of_encode(output: str, precision: Any, embedder: Embedder, tmp_path: Path) -> None:
    file = tmp_path / f"vectors{output}"
    done = embed_file(embedder, EmbedJob((texts_in(tmp_path),), file, precision=precision))
    expected = embedder.encode(TEXTS, precision=precision)
    assert (done.texts, done.dim) == (6, 64)
    vectors = read_vectors(file)
    np.testing.assert_array_equal(vectors.astype(expected.dtype), expected)
    if output == ".npy":
        assert vectors.dtype == expected.dtype
    if output == ".parquet":
        vector = pa.list_(pa.float16(), 64)
        assert pq.read_schema(file).equals(pa.schema([("id", pa.string()), ("vector", vector)]))
    assert manifest_of(file)["output"] == {"file": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


@pytest.mark.parametrize("output", [".parquet", ".jsonl"])
def test_ids_are_row_numbers_or_a_column(output: str, embedder: Embedder, tmp_path: Path) -> None:
    file = tmp_path / f"vectors{output}"
    embed_file(embedder, EmbedJob((texts_in(tmp_path, ".txt"),), file))
    assert read_ids(file) == [str(number) for number in range(6)]
    rows = [{"key": key, "text": "a"} for key in (7, "ü\n\u2028", "8")]
    embed_file(embedder, EmbedJob((write_rows(tmp_path / "texts.jsonl", rows),), file, id_column="key"))
    assert read_ids(file) == ["7", "ü\n\u2028", "8"]


@pytest.mark.parametrize(
    ("options", "width"), [({"dim": 10}, 10), ({"normalize": True}, 64), ({"instruction": "Find it."}, 64)]
)
def test_options_of_vectors_reach_them(
    options: dict[str, Any], width: int, pico: Callable[..., Embedder], tmp_path: Path
) -> None:
    embedder, texts = pico("causal/instruction/mean"), ["a", "", "b"]  # an empty text keeps its row
    rows = write_rows(tmp_path / "texts.csv", [{"body": text, "text": "wrong"} for text in texts])
    assert embed_file(embedder, EmbedJob((rows,), tmp_path / "vectors.npy", column="body", **options)) == EmbeddedFile(3, width)
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), embedder.encode(texts, **options))
    assert not np.array_equal(np.load(tmp_path / "vectors.npy"), embedder.encode(texts))


def test_sparse_vectors_are_token_ids_and_values(pico: Callable[..., Embedder], tmp_path: Path) -> None:
    embedder, output = pico("causal/eol/last/lexical", family="gemma2"), tmp_path / "vectors.jsonl"
    assert embed_file(embedder, EmbedJob((texts_in(tmp_path),), output, keep=("name",))) == EmbeddedFile(len(TEXTS), 512)
    found = [json.loads(line) for line in output.read_text().splitlines()]
    for row, expected, number in zip(found, embedder.encode_sparse(TEXTS).toarray(), range(len(TEXTS)), strict=True):
        assert list(row) == ["id", "indices", "values", "name"] and row["name"] == f"n{number}"
        assert row["indices"] == np.flatnonzero(expected).tolist()
        assert np.array_equal(np.array(row["values"], np.float32), expected[row["indices"]])
    assert any(row["indices"] for row in found) and manifest_of(output)["design"] == "causal/eol/last/lexical"


def test_options_of_dense_vectors_are_refused_with_sparse_ones(pico: Callable[..., Embedder], tmp_path: Path) -> None:
    file = write_rows(tmp_path / "texts.jsonl", [{"text": text, "values": "1"} for text in TEXTS])
    embedder = pico("causal/eol/last/lexical", family="gemma2")
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("vectors.npy", {}, "written to a .jsonl file only"),
        ("vectors.jsonl", {"dim": 8}, "--dim is for dense vectors"),
        ("vectors.jsonl", {"chunk": 8, "late": True}, "Late chunking needs dense vectors"),
    ]
    for output, options, message in cases:
        with pytest.raises(UnmaskError, match=message):
            RowEncoder(embedder, EmbedJob((file,), tmp_path / output, **options))


# --- manifest --------------------------------------------------------------------------------------------------------


def test_the_manifest_says_everything_that_the_vectors_depend_on(
    loaded: Embedder, pico_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    from importlib import metadata

    texts, file, folder = texts_in(tmp_path), tmp_path / "vectors.parquet", pico_folder("llama")
    job = EmbedJob((texts,), file)
    embed_file(loaded, job)
    found = manifest_of(file)
    assert found["model"]["model"] == str(folder)
    assert found["model"]["fingerprint"] == digest_of_folder(folder)
    assert found["model"]["adapters"] == []
    assert found["design"] == "causal/eol/last"
    assert found["prompt"] == 'This sentence : "{text}" means in one word:"'
    assert found["attention"] == loaded.backbone.proof.summary
    assert (found["max_length"], found["batch_tokens"]) == (512, loaded.batch_tokens)
    assert (found["dtype"], found["device"]) == ("float32", "cpu")
    assert found["input"] == {"file": str(texts), "sha256": hashlib.sha256(texts.read_bytes()).hexdigest()}
    assert (found["texts"], found["truncated"], found["dim"]) == (6, 0, 64)
    assert found["tokens"] > 6
    assert found["versions"]["torch"] == metadata.version("torch")
    assert (found["alpha"], found["fit"]) == (None, None)


def test_the_manifest_counts_texts_that_were_cut(pico: Callable[..., Embedder], tmp_path: Path) -> None:
    embedder = pico("causal/plain/mean", max_length=5)
    with pytest.warns(UserWarning, match="3 of 6 texts were cut to 5 tokens"):
        embed_file(
            embedder, EmbedJob((texts_in(tmp_path, texts=["x", "y", "z", *(["word " * 20] * 3)]),), tmp_path / "vectors.npy")
        )
    found = manifest_of(tmp_path / "vectors.npy")
    assert (found["texts"], found["truncated"], found["max_length"]) == (6, 3, 5)


@pytest.mark.parametrize("stop", ["vectors", "manifest"])
def test_a_kill_never_leaves_a_manifest_beside_other_vectors(
    stop: str, embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "vectors.npy"
    embed_file(embedder, EmbedJob((texts_in(tmp_path),), file))
    rename = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if target.name == {"vectors": "vectors.npy", "manifest": "vectors.npy.manifest.json"}[stop]:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        embed_file(embedder, EmbedJob((texts_in(tmp_path),), file, dim=3))
    assert np.load(file).shape[1] == (64 if stop == "vectors" else 3)
    assert {one.name for one in files_in(tmp_path)} == {"texts.jsonl", "vectors.npy"}
    monkeypatch.setattr(Path, "replace", rename)
    embed_file(embedder, EmbedJob((texts_in(tmp_path),), file, dim=3))
    assert manifest_of(file)["output"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("output", WRITERS)
def test_several_windows_make_the_file_that_one_makes(
    output: str, embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = texts_in(tmp_path, texts=[f"{text} {number}" for number in range(5) for text in TEXTS])
    files = [tmp_path / f"{name}{output}" for name in ("one", "several")]
    embed_file(embedder, EmbedJob((texts,), files[0], keep=() if output == ".npy" else ("name",)))
    monkeypatch.setattr("unmask.bulk.text_rows.WINDOW_ROWS", 7)
    embed_file(embedder, EmbedJob((texts,), files[1], keep=() if output == ".npy" else ("name",)))
    np.testing.assert_allclose(read_vectors(files[0]), read_vectors(files[1]), atol=1e-5)
    if output == ".npy":
        assert np.load(files[1]).flags.c_contiguous
    else:
        assert read_ids(files[0]) == read_ids(files[1]) == [str(number) for number in range(30)]


@pytest.mark.parametrize("output", [".parquet", ".jsonl"])
def test_columns_are_kept_as_text(output: str, embedder: Embedder, tmp_path: Path) -> None:
    rows = [{"text": "a", "year": 1999, "tags": ["x", "ü"], "title": "T"}, {"text": "b", "title": "\ud800"}]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    vectors = tmp_path / f"vectors{output}"
    embed_file(embedder, EmbedJob((file,), vectors, keep=("year", "tags", "title")))
    found = (
        pq.read_table(vectors).to_pylist()
        if output == ".parquet"
        else [json.loads(line) for line in vectors.read_text().splitlines()]
    )
    kept = [{name: row[name] for name in ("id", "year", "tags", "title")} for row in found]
    assert kept == [
        {"id": "0", "year": "1999", "tags": '["x", "ü"]', "title": "T"},
        {"id": "1", "year": None, "tags": None, "title": "?"},
    ]


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"name": "2"}, "line 2: column 'text' (str) is missing; there is name"),
        ({"name": "2", "text": None}, "line 2, column 'text': expected str, found NoneType"),
        ({"name": 1, "text": "a"}, "line 2, column 'name': the id '1' comes twice"),
    ],
)
def test_a_malformed_row_is_named(row: dict[str, Any], expected: str, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ({"name": "1", "text": "a"}, row)))
    with pytest.raises(UnmaskError) as error:
        check_file(EmbedJob((file,), tmp_path / "vectors.jsonl", id_column="name"))
    assert f"{file}, {expected}" in str(error.value)


def test_vectors_that_are_not_finite_are_not_written(pico: Callable[..., Embedder], tmp_path: Path) -> None:
    overflowing = pico("causal/eol/last")
    [letter] = overflowing.tokenizer("Z")["input_ids"]
    overflowing.backbone.model.get_input_embeddings().weight.data[letter] = float("nan")  # type: ignore[operator, union-attr, index]
    job = EmbedJob((texts_in(tmp_path, texts=["fine", "a Z"]),), tmp_path / "vectors.parquet")
    with pytest.raises(
        UnmaskError, match=r"texts\.jsonl, line 2: its vector is not finite \(NaN or infinity\)\. The model computes in float32"
    ):
        embed_file(overflowing, job)
    assert files_in(tmp_path) == list(job.inputs)


@pytest.mark.parametrize(
    ("name", "output"),
    [("encoding.encoder.Encoder.encode_tokenized", ".parquet"), ("writer", ".npy")],
)
def test_nothing_is_written_when_a_part_fails(
    name: str, output: str, embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **_: Any) -> None:
        if name == "writer":
            arguments[0].write_text("half")
        raise OSError("disk full")

    texts, file = texts_in(tmp_path), tmp_path / f"vectors{output}"
    file.write_text("vectors of yesterday")
    if name == "writer":
        monkeypatch.setitem(WRITERS, output, fail)
    else:
        monkeypatch.setattr(f"unmask.{name}", fail)
    with pytest.raises(OSError, match="disk full"):
        embed_file(embedder, EmbedJob((texts,), file))
    assert {*files_in(tmp_path)} == {texts, file} and file.read_text() == "vectors of yesterday"


def test_an_output_that_a_pattern_or_a_folder_stands_for_is_refused(tmp_path: Path) -> None:
    """Its rows would be left out of the input, and then be overwritten."""
    for name in ("a", "b"):
        write_rows(tmp_path / f"{name}.jsonl", [{"text": name}])
    before, output = (tmp_path / "b.jsonl").read_bytes(), tmp_path / "b.jsonl"
    for given in (tmp_path / "*.jsonl", tmp_path):
        with pytest.raises(UnmaskError, match=r"b.jsonl' is a file of the input, and the output would overwrite it"):
            check_file(EmbedJob((given,), output))
    Path(f"{output}.manifest.json").touch()  # it is what the same command wrote before
    assert check_file(EmbedJob((tmp_path / "*.jsonl",), output)).rows == 1 and output.read_bytes() == before
