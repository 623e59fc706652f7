"""A corpus becomes a folder of vectors: those of `encode`, none lost and none twice, whatever stops the run or changes before the next."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bulk.corpora import BAD, PICO, ROWS, content, job_of, letters_of, rows_of, run
from tests.conftest import TEXTS
from tests.tiny import write_rows
from unmask.bulk import embed_shard, team
from unmask.bulk.folder import check_folder
from unmask.bulk.job import EmbedJob
from unmask.bulk.loading import EmbedderArguments, settings_digest
from unmask.bulk.team import Member
from unmask.bulk.text_rows import DeadLetter, read_text_rows
from unmask.embedder import Embedder
from unmask.encoding.encoder import Encoder
from unmask.encoding.forward_pass import ForwardPass
from unmask.encoding.tokenization import PromptTokenizer
from unmask.errors import UnmaskError
from unmask.io.files import only_run_in

FITTED = EmbedderArguments("pico", "causal/plain/mean/zscore", PICO.options)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards that are embedded from now on."""
    names: list[str] = []
    embed = embed_shard.embed_shard

    def noted(encoder: Any, paths: Any, shard: Any, *more: Any) -> Any:
        names.append(shard.name)
        return embed(encoder, paths, shard, *more)

    monkeypatch.setattr(team, "embed_shard", noted)
    return names


def only(folder: Path, name: str, text: str) -> Path:
    """The corpus is one file of this content."""
    for file in (folder / "corpus").iterdir():
        file.unlink()
    file = folder / "corpus" / name
    file.write_bytes(text.encode())
    return file


def manifest_in(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "manifest.json").read_text()))


def encoded(texts: list[str], design: str = "mean") -> Any:
    return Embedder.from_pretrained("pico", design, device="cpu", dtype="float32").encode(texts)


# --- vectors, ids and records ----------------------------------------------------------------------------------------


def test_the_vectors_are_those_of_encode_with_ids_of_file_and_row(here: Path) -> None:
    job = job_of(here)
    manifest = run(job)
    rows = rows_of(here / "out")
    assert manifest.complete and manifest.texts == len(rows) == 3 * ROWS - 3
    items = [item for file in sorted((here / "corpus").iterdir()) for item in read_text_rows(file, job)]
    documents = [item for item in items if not isinstance(item, DeadLetter)]
    assert [row["id"] for row in rows] == [document.id for document in documents]
    assert [row["id"] for row in rows[:11]] == [*(f"corpus/a.jsonl:{number}" for number in range(10)), "corpus/a.jsonl:13"]
    vectors = encoded([document.text for document in documents])
    np.testing.assert_allclose([row["vector"] for row in rows], vectors, atol=1e-5)
    assert not np.allclose(vectors[0], vectors[1], atol=1e-3)


def test_the_shards_have_one_schema_with_the_columns_to_keep(here: Path) -> None:
    run(job_of(here, id_column="name", keep=("year",), dim=8, precision="float16"))
    table = pq.read_table(here / "out" / "vectors")
    assert table.num_rows == 3 * ROWS - 3 and table.schema.field("vector").type == pa.list_(pa.float16(), 8)
    rows = zip(table["id"].to_pylist(), table["year"].to_pylist(), strict=True)
    assert set(rows) >= {("n0", "0"), ("n119", "119"), ("y", None)}


def test_the_manifest_and_the_records_add_up(here: Path) -> None:
    manifest = run(job_of(here))
    records = [json.loads((here / "out" / "records" / f"{name}.json").read_text()) for name in manifest.shards]
    assert len(records) == 9 and [record["first_row"] for record in records] == [0, 16, 32] * 3
    for name, total in (("rows", 3 * ROWS), ("vectors", manifest.texts), ("dead_letters", 3), ("tokens", manifest.tokens)):
        assert sum(record[name] for record in records) == total
    inputs = [(source["file"], source["rows"]) for source in manifest.inputs]
    assert inputs == [(f"corpus/{name}", ROWS) for name in ("a.jsonl", "b.csv.gz", "c.parquet")]
    assert manifest.description["design"] == "causal/plain/mean" and manifest.padded >= manifest.tokens > manifest.texts


# --- resuming --------------------------------------------------------------------------------------------------------


def test_the_same_command_computes_nothing_again(here: Path, computed: list[str]) -> None:
    job = job_of(here, output=Path("corpus") / "vectors")  # which is not read
    run(job)
    before, first = content(job.output), list(computed)
    run(job)
    assert (content(job.output), computed) == (before, first) and len(first) == 9
    os.utime(here / "corpus" / "a.jsonl", ns=(1, 1))
    run(job, EmbedderArguments("pico", "mean", {**PICO.options, "batch_tokens": 99}))
    assert computed == first, "neither a touched file nor what changes rounding only is a reason"


def test_damage_is_noticed_and_computed_again(here: Path) -> None:
    first = run(job_of(here), FITTED)
    before = content(here / "out")
    for part in ("vectors", "records", "dead-letters", "manifest.json", "sources.json", first.description["fit_file"]):
        path = here / "out" / part
        file = path if path.is_file() else sorted(path.iterdir())[0]
        original, middle = file.read_bytes(), file.stat().st_size // 2
        for damaged in (original[:middle] + bytes([original[middle] ^ 1]) + original[middle + 1 :], None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            run(job_of(here), FITTED)
            assert content(here / "out") == before, part


def test_only_files_that_changed_are_done_again(here: Path, computed: list[str]) -> None:
    run(job_of(here))
    before = content(here / "out")
    computed.clear()
    file = here / "corpus" / "a.jsonl"
    file.write_text(file.read_text() + '{"text": "new"}\n' * 10)
    (here / "corpus" / "0").mkdir()
    write_rows(here / "corpus" / "0" / "a.jsonl", [{"text": "a"}])
    write_rows(here / "corpus" / "c.parquet", [{"text": "a", "name": "b", "year": "1"}])
    run(job_of(here))
    assert [name.partition("-")[0] for name in computed] == [*["a.jsonl"] * 5, "c.parquet"]
    after = content(here / "out")
    assert all(after[name] == file for name, file in before.items() if "b.csv" in name)
    names = manifest_in(here / "out")["shards"]
    assert sorted(file.stem for file in (here / "out" / "vectors").iterdir()) == sorted(names)
    assert len(rows_of(here / "out")) == 1 + (ROWS - 3 + 10) + ROWS + 1


def test_a_file_that_is_no_longer_given_is_refused_or_pruned(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(job_of(here))
    (here / "corpus" / "a.jsonl").unlink()
    before = content(here / "out")
    with pytest.raises(UnmaskError, match=r"holds vectors of 1 file not given, such as 'corpus/a\.jsonl'.* --prune"):
        run(job_of(here))
    assert content(here / "out") == before
    assert run(job_of(here), prune=True).complete and len(rows_of(here / "out")) == 2 * ROWS
    assert not [name for name in content(here / "out") if "a.jsonl" in name]


def test_another_model_design_or_option_is_refused_by_name(here: Path) -> None:
    run(job_of(here))
    before = content(here / "out")
    others: list[tuple[dict[str, Any], EmbedderArguments, str]] = [
        ({"keep": ("year",)}, PICO, r'options.keep was \[\] and is \["year"\]'),
        ({}, EmbedderArguments("pico", "last", PICO.options), 'design was "causal/plain/mean" and is "causal/plain/last"'),
        ({}, EmbedderArguments("pico", "mean", {"device": "cpu", "dtype": "bfloat16"}), 'was "float32" and is "bfloat16"'),
    ]
    for options, arguments, message in others:
        with pytest.raises(UnmaskError, match=rf"'out' holds a run with other settings: .*{message} now.*another folder"):
            run(job_of(here, **options), arguments)
        assert content(here / "out") == before


def test_a_folder_made_before_an_option_existed_continues(here: Path, computed: list[str]) -> None:
    @dataclass(frozen=True)
    class NewerJob(EmbedJob):
        stride: int = 1

    run(job_of(here))
    before = list(computed)
    options = vars(job_of(here))
    assert run(NewerJob(**options)).complete and computed == before
    with pytest.raises(UnmaskError, match=r"options.stride was not set and is 2 now"):
        run(NewerJob(**options, stride=2))


def test_a_fit_is_made_once_and_every_later_run_reads_it(
    here: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(here, "a.txt", "a man\na woman\n")
    first = run(job_of(here), FITTED)
    np.testing.assert_allclose(
        [row["vector"] for row in rows_of(here / "out")], encoded(["a man", "a woman"], str(FITTED.design)), atol=1e-4
    )
    before = content(here / "out")
    computed.clear()
    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "fit", lambda *_: pytest.fail("fitted again"))
        other_batches = EmbedderArguments("pico", FITTED.design, {**PICO.options, "batch_tokens": 99})
        assert settings_digest(Member(job_of(here), other_batches).description) == settings_digest(first.description)
        assert run(job_of(here), other_batches).complete and not computed
    assert {name for name, file in content(here / "out").items() if file != before[name]} <= {"manifest.json", "run.json"}
    before = content(here / "out")
    write_rows(here / "fit.jsonl", [{"text": f"{text} {number}"} for number, text in enumerate(TEXTS * 30)])
    with pytest.raises(UnmaskError, match=r'other settings: fit was ".*" and is'):
        run(job_of(here), EmbedderArguments("pico", FITTED.design, PICO.options, here / "fit.jsonl"))
    assert content(here / "out") == before


def test_a_folder_of_somebody_else_or_of_another_run_is_refused(here: Path) -> None:
    with only_run_in(here / "out"), pytest.raises(UnmaskError, match="Another run is writing to"):
        run(job_of(here))
    for name, text in (("mine.txt", "mine"), ("manifest.json", '{"name": "my app", "icons": []}')):
        file = here / f"of-{Path(name).stem}" / name
        file.parent.mkdir()
        file.write_text(text)
        with pytest.raises(UnmaskError, match=rf"'{file.parent}' holds other files, such as '{name}'"):
            run(job_of(here, output=file.parent))
        assert file.read_text() == text and [*content(file.parent)] == [name]


# --- dead letters ----------------------------------------------------------------------------------------------------


def test_a_row_that_cannot_be_embedded_is_a_dead_letter(here: Path) -> None:
    manifest = run(job_of(here))
    letters = letters_of(here / "out")
    assert [(letter["file"], letter["line"]) for letter in letters] == [("corpus/a.jsonl", line) for line in (11, 12, 13)]
    for letter, reason in zip(letters, ["expected str, found int", "no JSON", "column 'text' (str) is missing"], strict=True):
        assert reason in letter["reason"]
    assert letters[1]["text"].startswith(BAD[1])
    assert (manifest.dead_letters, manifest.flawless, manifest.complete) == (3, False, True)


def test_a_text_without_a_vector_is_a_dead_letter(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its vector is not finite, or does not fit float16, or the tokenizer fails."""
    encode, tokenize, expected = Encoder.encode_tokenized, PromptTokenizer.tokenize, encoded(["fine"])[0]

    def spoiled(*arguments: Any, **options: Any) -> Any:
        results = encode(*arguments, **options)
        for vectors in results.values():
            vectors[:1, 0], vectors[1:2, 0] = np.nan, 1e6
        return results

    def failing(self: Any, texts: Any, instruction: Any = None) -> Any:
        if "\0" in "".join(texts):
            raise ValueError("null byte")
        return tokenize(self, texts, instruction)

    monkeypatch.setattr(Encoder, "encode_tokenized", spoiled)
    monkeypatch.setattr(PromptTokenizer, "tokenize", failing)
    only(here, "a.txt", "b\0\nnan\nlarge\nfine\n")
    run(job_of(here, precision="float16"))
    reasons = [letter["reason"] for letter in letters_of(here / "out")]
    assert [reason.partition(":")[0] for reason in reasons] == ["line 1", "line 2", "line 3"]
    assert reasons[0] == "line 1: the tokenizer fails: null byte"
    assert "not finite (NaN or infinity). The model computes in float32" in reasons[1] and "float16" in reasons[2]
    [row] = rows_of(here / "out")
    np.testing.assert_allclose(row["vector"], expected, atol=1e-2)


def test_equal_ids_are_dead_letters_in_one_file_and_counted_over_all(here: Path) -> None:
    rows = [{"text": None, "key": 1}, {"text": "a", "key": 1}, {"text": "b", "key": "1"}, {"text": "c", "key": 2}]
    only(here, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write_rows(here / "corpus" / "b.jsonl", [{"text": "d", "key": 2}, {"text": "e", "key": 3}])
    manifest = run(job_of(here, id_column="key"))
    first, second = letters_of(here / "out")
    assert first["line"] == 1, "a dead letter takes no id away"
    assert second["reason"] == "line 3, column 'key': the id '1' comes twice."
    assert (manifest.repeated_ids, manifest.flawless) == (1, False)
    assert "Ids that are in another shard, too: 1." in manifest.summary(here / "out")


def test_a_text_beyond_the_limit_is_a_dead_letter(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.bulk.text_rows.LONGEST", 1000)
    monkeypatch.setattr("unmask.bulk.shards.LONGEST", 1000)
    rows = [{"text": "a"}, {"text": "x" * 1001}, {"text": "b"}]
    only(here, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write_rows(here / "corpus" / "b.parquet", rows)
    run(job_of(here))
    letters = letters_of(here / "out")
    assert [letter["reason"] for letter in letters] == [
        "line 2: the line has 1014 bytes; 1000 are allowed.",
        "line 2: the text has 1001 characters; 1000 are allowed.",
    ]
    assert all(len(letter["text"]) <= 200 for letter in letters) and len(rows_of(here / "out")) == 4


def test_the_same_text_is_computed_once_in_a_window(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, computed = ForwardPass.vectors, list[int]()

    def noted(self: Any, texts: Any, *arguments: Any) -> Any:
        computed.append(len(texts))
        return vectors(self, texts, *arguments)

    only(here, "a.txt", "same\n" * 3000 + "other\n")
    monkeypatch.setattr(ForwardPass, "vectors", noted)
    run(job_of(here, shard_rows=50_000))
    rows = rows_of(here / "out")
    assert sum(computed) < 10 and len(rows) == 3001
    expected = encoded(["same", "other"])
    np.testing.assert_allclose([rows[index]["vector"] for index in (0, 1, 2999, 3000)], expected[[0, 0, 0, 1]], atol=1e-5)


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_a_refused_run_leaves_everything_as_it_was(here: Path) -> None:
    (here / "corpus" / "empty.txt").touch()
    assert run(job_of(here)).complete, "files without a row are skipped unless all are empty"
    before = content(here / "out")
    only(here, "a.txt", "")
    (here / "corpus" / "b.jsonl").touch()
    (here / "empty").mkdir()
    for output in ("new/deep", "empty", "out"):
        with pytest.raises(UnmaskError, match=r"corpus: no row in 2 files\.$"):
            run(job_of(here, output=Path(output)))
    only(here, "a.txt", "a\n")
    for output in ("new/deep", "empty"):
        with pytest.raises(UnmaskError, match="dim must be"):
            run(job_of(here, output=Path(output), dim=9999), FITTED)
    assert content(here / "out") == before and not (here / "new").exists() and not list((here / "empty").iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": "txet"}, r"corpus/a\.jsonl: none of its first rows has a column 'txet'; there is text, name, year"),
        ({"inputs": (Path("corpus/*.tsv"),)}, r"No file matches 'corpus/\*\.tsv'"),
        ({"output": Path("corpus")}, "'corpus' is an input"),
        ({"output": Path("corpus/a.jsonl/out")}, "is a file, not a folder"),
    ],
)
def test_mistakes_are_found_before_a_model_is_loaded(options: dict[str, Any], message: str, here: Path) -> None:
    with pytest.raises(UnmaskError, match=message):
        check_folder(job_of(here, **options))
    assert not (here / "out").exists()


def test_a_file_that_changes_meanwhile_ends_the_run_and_the_next_one_resumes(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed = Member.embed

    def meddled(self: Member, shard: Any, *more: Any) -> Any:
        if shard.file == "corpus/c.parquet":
            write_rows(Path(shard.file), [{"text": "changed", "name": "c"}])
        return embed(self, shard, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Member, "embed", meddled)
        with pytest.raises(UnmaskError, match=r"corpus/c\.parquet changed while it was embedded. Run the command again"):
            run(job_of(here))
    assert run(job_of(here)).complete and rows_of(here / "out")[-1]["id"] == "corpus/c.parquet:0"
