"""A corpus becomes a folder of vectors: those of `encode`, none lost and none twice, whatever stops the run or changes before the next."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.bulk.corpora import BAD, PICO, ROWS, content, job_of, letters_of, rows_of, run, write_corpus
from tests.conftest import TEXTS
from tests.tiny import write_rows
from unmask.bulk import embed_shard
from unmask.bulk.documents import DeadLetter, Document, read_documents, windows
from unmask.bulk.folder import check_folder, embed_folder
from unmask.bulk.job import EmbedderArguments
from unmask.bulk.kept_fit import read_fit, save_fit
from unmask.bulk.manifest import key_of
from unmask.bulk.repeated_ids import count_repeated
from unmask.bulk.shards import SourceFile, read_sources
from unmask.bulk.team import Member
from unmask.bulk.workers import Workers
from unmask.embedder import Embedder
from unmask.encoding.encoder import Encoder
from unmask.encoding.features import Fit
from unmask.errors import UnmaskError
from unmask.io.files import only_run_in


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a corpus, which the test runs in, so that names of files are short."""
    write_corpus(tmp_path / "corpus")
    monkeypatch.chdir(tmp_path)
    return Path()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards that are embedded from now on."""
    names: list[str] = []
    embed = embed_shard.embed_shard

    def noted(encoder: Any, places: Any, shard: Any, *more: Any) -> Any:
        names.append(shard.name)
        return embed(encoder, places, shard, *more)

    monkeypatch.setattr("unmask.bulk.team.embed_shard", noted)
    return names


def only(folder: Path, name: str, text: str) -> Path:
    """The corpus is one file of this content."""
    for file in (folder / "corpus").iterdir():
        file.unlink()
    file = folder / "corpus" / name
    file.write_text(text, encoding="utf-8")
    return file


# --- vectors, ids and records ----------------------------------------------------------------------------------------


def test_the_vectors_are_those_of_encode_with_ids_of_file_and_row(here: Path) -> None:
    manifest = run(job_of(here))
    rows = rows_of(here / "out")
    assert manifest.complete and manifest.texts == len(rows) == 3 * ROWS - 3
    job, expected = job_of(here), dict[str, str]()
    for file in sorted((here / "corpus").iterdir()):
        expected |= {item.id: item.text for item in read_documents(file, job) if not isinstance(item, DeadLetter)}
    assert [row["id"] for row in rows] == list(expected)
    assert [row["id"] for row in rows[:11]] == [*(f"corpus/a.jsonl:{number}" for number in range(10)), "corpus/a.jsonl:13"]
    vectors = Embedder.from_pretrained("pico", "mean", device="cpu", dtype="float32").encode(list(expected.values()))
    np.testing.assert_allclose(np.array([row["vector"] for row in rows]), vectors, atol=1e-5)
    assert not np.allclose(vectors[0], vectors[1], atol=1e-3)


def test_a_shard_has_the_columns_that_are_kept_and_one_schema(here: Path) -> None:
    run(job_of(here, id_column="name", keep=("year",), dim=8, precision="float16"))
    schemas = {str(pq.read_schema(file).remove_metadata()) for file in (here / "out" / "vectors").iterdir()}
    assert len(schemas) == 1 and "fixed_size_list<element: halffloat>[8]" in schemas.pop()
    assert {(row["id"], row["year"]) for row in rows_of(here / "out")} >= {("n0", "0"), ("n119", "119"), ("y", None)}


def test_the_folder_reads_as_one_table(here: Path) -> None:
    run(job_of(here))
    assert pq.read_table(here / "out" / "vectors").num_rows == 3 * ROWS - 3


def test_the_manifest_and_the_records_add_up(here: Path) -> None:
    manifest = run(job_of(here, shard_rows=16))
    records = [json.loads((here / "out" / "records" / f"{name}.json").read_text()) for name in manifest.shards]
    assert len(records) == 9 and [record["first_row"] for record in records] == [0, 16, 32] * 3
    for name, whole in (("rows", 3 * ROWS), ("vectors", manifest.texts), ("dead_letters", 3), ("tokens", manifest.tokens)):
        assert sum(record[name] for record in records) == whole
    assert [(one["file"], one["rows"]) for one in manifest.inputs] == [
        (f"corpus/{name}", ROWS) for name in ("a.jsonl", "b.csv.gz", "c.parquet")
    ]
    assert manifest.description["design"] == "causal/plain/mean" and manifest.padded >= manifest.tokens > manifest.texts


def test_a_packed_corpus_gives_the_vectors_of_the_plain_one(here: Path) -> None:
    run(job_of(here, id_column="name"))
    packed = rows_of(here / "out")
    (here / "corpus" / "b.csv").write_bytes(gzip.decompress((here / "corpus" / "b.csv.gz").read_bytes()))
    (here / "corpus" / "b.csv.gz").unlink()
    run(job_of(here, id_column="name", output=here / "plain"))
    assert rows_of(here / "plain") == packed


# --- going on --------------------------------------------------------------------------------------------------------


def test_the_same_command_computes_nothing_again(here: Path, computed: list[str]) -> None:
    run(job_of(here))
    before, first = content(here / "out"), list(computed)
    run(job_of(here))
    assert (content(here / "out"), computed) == (before, first) and len(first) == 9


@pytest.mark.sample(2)
@pytest.mark.parametrize("stop", [0, 1, 4, 8])
def test_a_run_that_was_stopped_ends_as_an_undisturbed_one(stop: int, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(job_of(here))
    (here / "out").rename("undisturbed")
    embed, calls = embed_shard.embed_shard, []

    def stopped(*given: Any) -> Any:
        calls.append(given[2].name)
        if len(calls) > stop:
            raise KeyboardInterrupt
        return embed(*given)

    with monkeypatch.context() as patch:
        patch.setattr("unmask.bulk.team.embed_shard", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(job_of(here))
    assert not json.loads((here / "out" / "manifest.json").read_text())["complete"]
    run(job_of(here))
    assert content(here / "out") == content(Path("undisturbed"))


@pytest.mark.sample(6)
@pytest.mark.parametrize("part", ["vectors", "records", "dead-letters", "manifest.json", "sources.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_damage_is_noticed_and_computed_again(part: str, damage: str, here: Path) -> None:
    run(job_of(here))
    before = content(here / "out")
    place = here / "out" / part
    file = place if place.is_file() else sorted(place.iterdir())[0]
    whole = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        middle = len(whole) // 2
        file.write_bytes(whole[:middle] + (b"" if damage == "cut" else bytes([whole[middle] ^ 1]) + whole[middle + 1 :]))
    run(job_of(here))
    assert content(here / "out") == before


def test_a_file_that_changed_is_done_again_and_the_others_are_kept(here: Path, computed: list[str]) -> None:
    run(job_of(here))
    before = content(here / "out")
    computed.clear()
    file = here / "corpus" / "a.jsonl"
    file.write_text(file.read_text() + '{"text": "new"}\n' * 10)
    run(job_of(here))
    assert len(computed) == 4 and all(name.startswith("a.jsonl-") for name in computed)
    after = content(here / "out")
    changed = {name for name in before if before[name] != after[name]} | (after.keys() - before.keys())
    assert all("a.jsonl" in name for name in changed - {"manifest.json", "sources.json"})
    assert len(rows_of(here / "out")) == 3 * ROWS - 3 + 10


def test_a_file_that_was_only_touched_is_kept(here: Path, computed: list[str]) -> None:
    run(job_of(here))
    computed.clear()
    os.utime(here / "corpus" / "a.jsonl", ns=(1, 1))
    run(job_of(here))
    assert computed == []


def test_a_file_that_is_shorter_leaves_no_shards_behind(here: Path) -> None:
    run(job_of(here))
    write_rows(here / "corpus" / "c.parquet", [{"text": "a", "name": "b", "year": "1"}])
    run(job_of(here))
    names = json.loads((here / "out" / "manifest.json").read_text())["shards"]
    assert sorted(file.stem for file in (here / "out" / "vectors").iterdir()) == sorted(names) and len(names) == 7


def test_a_new_file_does_not_rename_the_shards_of_the_others(here: Path, computed: list[str]) -> None:
    run(job_of(here))
    computed.clear()
    (here / "corpus" / "0").mkdir()
    write_rows(here / "corpus" / "0" / "a.jsonl", [{"text": "a"}])
    run(job_of(here))
    assert len(computed) == 1 and len(rows_of(here / "out")) == 3 * ROWS - 2


def test_a_file_that_is_no_longer_given_is_refused_or_pruned(here: Path) -> None:
    run(job_of(here))
    (here / "corpus" / "a.jsonl").unlink()
    before = content(here / "out")
    with pytest.raises(UnmaskError, match=r"holds vectors of 1 file not given, such as 'corpus/a\.jsonl'.* --prune"):
        run(job_of(here))
    assert content(here / "out") == before
    run(job_of(here), prune=True)
    assert len(rows_of(here / "out")) == 2 * ROWS
    assert not [name for name in content(here / "out") if "a.jsonl" in name]


def test_a_kill_while_shards_are_removed_leaves_a_manifest_that_is_not_complete(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job_of(here))
    (here / "corpus" / "a.jsonl").unlink()

    def removed_and_killed(path: Path) -> None:
        if path.exists():
            path.unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("unmask.bulk.folder.remove", removed_and_killed)
        run(job_of(here), prune=True)
    manifest = json.loads((here / "out" / "manifest.json").read_text())
    assert not manifest["complete"] and len(manifest["shards"]) == 6
    assert run(job_of(here), prune=True).complete and len(rows_of(here / "out")) == 2 * ROWS


def test_vectors_of_a_run_that_ended_meanwhile_are_not_removed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def after_another_run(folder: Path) -> Any:
        monkeypatch.setattr("unmask.runs.runs.only_run_in", only_run_in)
        run(job_of(here))
        return only_run_in(folder)

    monkeypatch.setattr("unmask.runs.runs.only_run_in", after_another_run)
    with pytest.raises(UnmaskError, match="holds vectors of 2 files not given"):
        run(job_of(here, inputs=(here / "corpus" / "a.jsonl",)))
    assert len(rows_of(here / "out")) == 3 * ROWS - 3


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"dim": 4}, PICO, "options.dim was not set and is 4"),
        ({"keep": ("year",)}, PICO, r'options.keep was \[\] and is \["year"\]'),
        ({"shard_rows": 17}, PICO, "options.shard_rows was 16 and is 17"),
        ({}, EmbedderArguments("pico", "last", PICO.options), 'design was "causal/plain/mean" and is "causal/plain/last"'),
        ({}, EmbedderArguments("pico", "mean", {**PICO.options, "max_length": 9}), "max_length was 512 and is 9"),
        (
            {},
            EmbedderArguments("pico", "mean", {"device": "cpu", "dtype": "bfloat16"}),
            'dtype was "float32" and is "bfloat16"',
        ),
    ],
)
def test_another_model_design_or_option_is_refused_by_name(
    options: dict[str, Any], arguments: EmbedderArguments, message: str, here: Path
) -> None:
    run(job_of(here))
    before = content(here / "out")
    with pytest.raises(UnmaskError, match=rf"'out' holds a run with other settings: .*{message} now.*Choose another folder"):
        run(job_of(here, **options), arguments)
    assert content(here / "out") == before


def test_what_changes_rounding_only_is_no_reason_to_refuse(here: Path, computed: list[str]) -> None:
    run(job_of(here))
    computed.clear()
    run(job_of(here), EmbedderArguments("pico", "mean", {**PICO.options, "batch_tokens": 99}))
    assert computed == []


FITTED = EmbedderArguments("pico", "causal/plain/mean/zscore", PICO.options)


def test_a_fit_is_made_once_and_every_member_and_later_run_reads_it(
    here: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(here)
    first = run(job, FITTED)
    before = content(here / "out")
    assert (here / "out" / first.description["fit_file"]).is_file() and len(computed) == 9
    shifted = fit_designs_of(monkeypatch, 1.001)
    member = Member(job, EmbedderArguments("pico", FITTED.design, {**PICO.options, "batch_tokens": 99}))
    assert key_of(member.description) == key_of(first.description) and not shifted
    computed.clear()
    run(job, EmbedderArguments("pico", FITTED.design, {**PICO.options, "batch_tokens": 99}))
    assert (computed, shifted) == ([], [])
    assert {name for name, whole in content(here / "out").items() if whole != before[name]} <= {"manifest.json", "run.json"}


@pytest.mark.parametrize("design", ["causal/plain/mean/zscore", "causal/plain/mean/whiten"])
def test_a_kept_fit_gives_the_vectors_of_encode(design: str, here: Path) -> None:
    only(here, "a.txt", "a man\na woman\n")
    run(job_of(here), EmbedderArguments("pico", design, PICO.options))
    expected = Embedder.from_pretrained("pico", design, device="cpu", dtype="float32").encode(["a man", "a woman"])
    np.testing.assert_allclose([row["vector"] for row in rows_of(here / "out")], expected, atol=1e-4)


def test_a_kept_fit_is_read_to_the_bit(tmp_path: Path) -> None:
    fit = Fit(0.1 + 0.2, hidden_mean=torch.rand(7))
    save_fit(tmp_path / "fit", fit)
    found = read_fit(tmp_path / "fit")
    assert found is not None and found.alpha == fit.alpha and found.tensors.keys() == fit.tensors.keys()
    assert found.hidden_mean is not None and torch.equal(found.hidden_mean, fit.tensors["hidden_mean"])


def test_a_fit_on_other_texts_is_refused_and_leaves_nothing_behind(here: Path) -> None:
    run(job_of(here), FITTED)
    before = content(here / "out")
    write_rows(here / "fit.jsonl", [{"text": f"{text} {number}"} for number, text in enumerate(TEXTS * 30)])
    with pytest.raises(UnmaskError, match=r'other settings: fit was ".*" and is'):
        run(job_of(here), EmbedderArguments("pico", FITTED.design, PICO.options, here / "fit.jsonl"))
    assert content(here / "out") == before


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_fit_that_is_damaged_is_made_again(damage: str, here: Path) -> None:
    first = run(job_of(here), FITTED)
    before = content(here / "out")
    file = here / "out" / first.description["fit_file"]
    file.unlink() if damage == "gone" else file.write_bytes(file.read_bytes()[:-8])
    run(job_of(here), FITTED)
    assert content(here / "out") == before


def test_the_fit_of_a_saved_embedder_is_its_own(here: Path) -> None:
    embedder = Embedder.from_pretrained("pico", FITTED.design, device="cpu", dtype="float32")
    embedder.fit([f"{text} {number}" for number, text in enumerate(TEXTS * 30)])
    embedder.save_pretrained(here / "saved")
    only(here, "a.txt", "a man\n")
    manifest = run(job_of(here), EmbedderArguments("saved", None, PICO.options))
    assert manifest.description["fit_file"] is None
    np.testing.assert_allclose(rows_of(here / "out")[0]["vector"], embedder.encode(["a man"])[0], atol=1e-4)


def fit_designs_of(monkeypatch: pytest.MonkeyPatch, factor: float) -> list[str]:
    """From now on, fits differ by a factor, as on another device. Returns the designs that are fitted."""
    seen, fit_designs = list[str](), Encoder.fit

    def shifted(*given: Any, **options: Any) -> Any:
        seen.append("fitted")
        fits = fit_designs(*given, **options)
        return {
            design: Fit(fit.alpha, **{name: tensor * factor for name, tensor in fit.tensors.items()})
            for design, fit in fits.items()
        }

    monkeypatch.setattr(Encoder, "fit", shifted)
    return seen


def test_a_member_with_another_embedder_writes_nothing(here: Path) -> None:
    job = job_of(here)
    described = Member(job, PICO)
    other = Member(job, EmbedderArguments("pico", "causal/plain/mean", {"device": "cpu", "dtype": "bfloat16"}))
    shard = read_sources(job.files(), job, None, lambda _: None).shards[0]
    with pytest.raises(UnmaskError, match=r"another embedder than the one that the run described.* bfloat16 on cpu"):
        other.embed(shard, key_of(described.description), lambda _: None)
    assert not (here / "out").exists()
    assert described.embed(shard, key_of(described.description), lambda _: None).vectors


@pytest.mark.parametrize("part", ["vectors", "dead-letters"])
def test_files_of_a_shard_without_a_record_do_not_outlive_its_texts(part: str, here: Path) -> None:
    """A run is killed before the record of its last shard is written, and then the texts of the shard are removed."""
    run(job_of(here))
    for file in (here / "out" / "records").glob("a.jsonl-*"):
        file.unlink()
    (here / "corpus" / "a.jsonl").unlink()
    mine = here / "out" / part / "mine.parquet"
    mine.touch()
    run(job_of(here))
    assert [file.name for file in (here / "out" / part).iterdir() if file.name.startswith("a.jsonl")] == []
    assert mine.is_file()


def test_names_of_shards_do_not_collide() -> None:
    from hashlib import sha256

    files = [f"part-{number}/data.jsonl" for number in (107498, 125815)]
    assert len({sha256(file.encode()).hexdigest()[:8] for file in files}) == 1, "of 200 000 such names, two begin alike"
    assert len(
        {SourceFile(file=file, size=1, changed=1, sha256="", rows=1, starts=[(0, 0, 0)]).shards()[0].name for file in files}
    ) == len(files)


def test_two_runs_do_not_write_one_folder_at_once(here: Path) -> None:
    with only_run_in(here / "out"), pytest.raises(UnmaskError, match="Another run is writing to"):
        run(job_of(here))


def test_a_folder_with_other_files_is_refused(here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / "mine.txt").write_text("mine")
    with pytest.raises(UnmaskError, match=r"'out' holds other files, such as 'mine\.txt'"):
        run(job_of(here))
    assert list(content(here / "out")) == ["mine.txt"]


@pytest.mark.parametrize("name", ["manifest.json", "sources.json"])
@pytest.mark.parametrize("whole", ["[1, 2]", '{"name": "my app", "icons": []}', "no json", ""])
def test_a_folder_with_somebody_elses_json_is_refused(name: str, whole: str, here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / name).write_text(whole)
    with pytest.raises(UnmaskError, match=rf"'out' holds other files, such as '{name}'"):
        run(job_of(here))
    assert (here / "out" / name).read_text() == whole


def test_a_folder_of_ours_without_its_marker_is_gone_on_with(here: Path, computed: list[str]) -> None:
    run(job_of(here))
    for file in (here / "out").glob(".*"):
        file.unlink()
    computed.clear()
    assert run(job_of(here)).complete and computed == []


def test_a_run_that_was_stopped_before_its_manifest_goes_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("unmask.bulk.team.describe", stopped)
        run(job_of(here), FITTED)
    assert [file.name[:4] for file in (here / "out").glob("[!.]*")] == ["fit-"]
    assert run(job_of(here), FITTED).complete


def stopped(*_: Any) -> Any:
    """As a run that is interrupted here."""
    raise KeyboardInterrupt


# --- dead letters ----------------------------------------------------------------------------------------------------


def test_a_row_that_cannot_be_embedded_is_a_dead_letter(here: Path) -> None:
    manifest = run(job_of(here))
    letters = letters_of(here / "out")
    assert [(letter["file"], letter["line"]) for letter in letters] == [("corpus/a.jsonl", line) for line in (11, 12, 13)]
    for letter, reason in zip(letters, ["expected str, found int", "no JSON", "column 'text' (str) is missing"], strict=True):
        assert reason in letter["reason"]
    assert letters[1]["text"].startswith(BAD[1])
    assert (manifest.dead_letters, manifest.flawless, manifest.complete) == (3, False, True)


def test_a_vector_that_is_not_finite_is_a_dead_letter(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = EmbedderArguments.load

    def spoiled(self: EmbedderArguments) -> Embedder:
        embedder = load(self)
        [letter] = embedder.tokenizer("Z")["input_ids"]
        embedder.backbone.model.get_input_embeddings().weight.data[letter] = float("nan")  # type: ignore[operator, union-attr, index]
        return embedder

    monkeypatch.setattr(EmbedderArguments, "load", spoiled)
    only(here, "a.txt", "fine\na Z\nfine\na Z\nbetter\n")
    manifest = run(job_of(here))
    assert [row["id"] for row in rows_of(here / "out")] == [f"corpus/a.txt:{number}" for number in (0, 2, 4)]
    assert [letter["line"] for letter in letters_of(here / "out")] == [2, 4] and manifest.dead_letters == 2
    assert "not finite (NaN or infinity). The model computes in float32" in letters_of(here / "out")[0]["reason"]


def test_a_vector_beyond_float16_is_a_dead_letter(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Encoder.encode_tokenized

    def enlarged(*given: Any, **options: Any) -> Any:
        found = encode(*given, **options)
        for vectors in found.values():
            vectors[1:2, 0] = 1e6
        return found

    monkeypatch.setattr(Encoder, "encode_tokenized", enlarged)
    only(here, "a.txt", "a\nb\nc\n")
    run(job_of(here, precision="float16"))
    assert [letter["line"] for letter in letters_of(here / "out")] == [2]
    run(job_of(here, precision="float16", normalize=True, output=here / "unit"))
    assert letters_of(here / "unit") == []


def test_a_text_that_the_tokenizer_cannot_take_spares_the_others(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unmask.encoding.tokenization import PromptTokenizer

    tokenize = PromptTokenizer.tokenize

    def failing(self: Any, texts: Any, instruction: Any = None) -> Any:
        if "\0" in "".join(texts):
            raise ValueError("null byte")
        return tokenize(self, texts, instruction)

    monkeypatch.setattr(PromptTokenizer, "tokenize", failing)
    only(here, "a.txt", "a\nb\0\nc\n")
    run(job_of(here))
    assert [letter["reason"] for letter in letters_of(here / "out")] == ["line 2: the tokenizer fails: null byte"]
    assert len(rows_of(here / "out")) == 2


def test_equal_ids_are_dead_letters_in_one_file_and_counted_over_all(here: Path) -> None:
    only(here, "a.jsonl", '{"text": "a", "key": 1}\n{"text": "b", "key": "1"}\n{"text": "c", "key": 2}\n')
    write_rows(here / "corpus" / "b.jsonl", [{"text": "d", "key": 2}, {"text": "e", "key": 3}])
    manifest = run(job_of(here, id_column="key"))
    assert [letter["reason"] for letter in letters_of(here / "out")] == ["line 2, column 'key': the id '1' comes twice."]
    assert (manifest.repeated_ids, manifest.flawless) == (1, False)
    assert "Ids that are in another shard, too: 1." in manifest.told(here / "out")


def test_a_dead_letter_takes_no_id_away(here: Path) -> None:
    only(here, "a.jsonl", '{"text": null, "key": 1}\n{"text": "a", "key": "1"}\n{"key": 1}\n{"text": "b", "key": 1}\n')
    run(job_of(here, id_column="key"))
    assert [row["id"] for row in rows_of(here / "out")] == ["1"]
    assert [letter["line"] for letter in letters_of(here / "out")] == [1, 3, 4]
    assert "the id '1' comes twice" in letters_of(here / "out")[2]["reason"]


def test_a_column_named_chunk_does_not_switch_the_count_of_ids_off(here: Path) -> None:
    files = [here / "corpus" / f"{name}.parquet" for name in ("a", "b")]
    for file in files:
        pq.write_table(pa.table({"id": ["2"], "chunk": ["7"]}), file)
    assert count_repeated(files, chunked=False) == 1
    with pytest.raises(UnmaskError, match="--keep chunk: the output has a column 'chunk' of its own"):
        check_folder(job_of(here, keep=("chunk",), chunk=16))


def test_counting_ids_takes_hardly_more_than_eight_bytes_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.bulk.repeated_ids._BATCH", 1000)
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for first, file in enumerate(files):
        pq.write_table(pa.table({"id": [str(number) for number in range(first * 99_000, first * 99_000 + 100_000)]}), file)
    count_repeated(files, chunked=False)
    tracemalloc.start()
    try:
        assert count_repeated(files, chunked=False) == 1000
        assert tracemalloc.get_traced_memory()[1] < 10 * 200_000
    finally:
        tracemalloc.stop()


def test_a_text_beyond_the_limit_is_a_dead_letter(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.bulk.documents.LONGEST", 1000)
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


def test_a_file_whose_end_is_damaged_is_embedded_up_to_there(here: Path) -> None:
    only(here, "a.txt", "a\n")
    whole = gzip.compress(b"".join(b"%d\n" % number for number in range(5_000)))
    (here / "corpus" / "b.txt.gz").write_bytes(whole[: len(whole) // 2])
    manifest = run(job_of(here, shard_rows=5_000))
    [letter] = letters_of(here / "out")
    assert "cannot be unpacked after line" in letter["reason"]
    assert manifest.complete and manifest.texts == letter["line"]


# --- hostile documents -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rows", "dead"),
    [
        ("a\n" + "x" * 10_000_000 + "\nb\n", 2, 1),
        ("nul\0byte\n\u202eabc\u2066\nbell\x07\x1b[31m\n", 3, 0),
        ("\ufefffirst\r\nsecond\r\n\r\n", 3, 0),
        ("\n" * 100_000, 100_000, 0),
    ],
    ids=["long", "control", "crlf", "empty"],
)
def test_hostile_documents_are_embedded_or_told(text: str, rows: int, dead: int, here: Path) -> None:
    only(here, "a.txt", "").write_bytes(text.encode())
    manifest = run(job_of(here, shard_rows=50_000))
    assert (manifest.texts, manifest.dead_letters) == (rows, dead)


def test_the_same_text_is_computed_once_in_a_window(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unmask.encoding.forward_pass import ForwardPass

    vectors, computed = ForwardPass.vectors, list[int]()

    def noted(self: Any, texts: Any, *arguments: Any) -> Any:
        computed.append(len(texts))
        return vectors(self, texts, *arguments)

    only(here, "a.txt", "same\n" * 3000 + "other\n")
    monkeypatch.setattr(ForwardPass, "vectors", noted)
    run(job_of(here, shard_rows=50_000))
    rows = rows_of(here / "out")
    assert sum(computed) < 10 and len(rows) == 3001
    expected = Embedder.from_pretrained("pico", "mean", device="cpu", dtype="float32").encode(["same", "other"])
    np.testing.assert_allclose([rows[index]["vector"] for index in (0, 1, 2999, 3000)], expected[[0, 0, 0, 1]], atol=1e-5)


def test_a_window_counts_the_values_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.bulk.documents.WINDOW_CHARACTERS", 1000)
    documents = [Document(row, row + 1, "id", "short", ("x" * 300, None)) for row in range(10)]
    assert [len(window) for window in windows(documents)] == [3, 3, 3, 1]
    assert [len(window) for window in windows([replace(one, kept=(), id="i" * 495) for one in documents])] == [2] * 5


def test_files_without_a_row_are_passed_over_unless_all_are(here: Path) -> None:
    (here / "corpus" / "empty.txt").touch()
    assert run(job_of(here)).complete
    only(here, "a.txt", "")
    with pytest.raises(UnmaskError, match=r"corpus: no row in 1 file\.$"):
        run(job_of(here, output=here / "other"))


def test_a_run_with_nothing_to_embed_makes_no_folder_and_leaves_one_as_it_is(here: Path) -> None:
    only(here, "a.txt", "")
    (here / "corpus" / "b.jsonl").touch()
    with pytest.raises(UnmaskError, match=r"corpus: no row in 2 files\.$"):
        run(job_of(here, output=here / "new" / "deep"))
    assert not (here / "new").exists()
    (here / "empty").mkdir()
    with pytest.raises(UnmaskError, match="no row"):
        run(job_of(here, output=here / "empty"))
    assert (here / "empty").is_dir() and not list((here / "empty").iterdir())
    only(here, "a.txt", "one\n")
    run(job_of(here))
    before = content(here / "out")
    only(here, "a.txt", "")
    with pytest.raises(UnmaskError, match="no row"):
        run(job_of(here))
    assert content(here / "out") == before


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": "txet"}, r"corpus/a\.jsonl: none of its first rows has a column 'txet'; there is text, name, year"),
        ({"id_column": "nmae"}, "has a column 'nmae'"),
        ({"keep": ("yaer",)}, "has a column 'yaer'"),
        ({"inputs": (Path("corpus/*.tsv"),)}, r"No file matches 'corpus/\*\.tsv'"),
        ({"output": Path("corpus")}, "'corpus' is an input"),
        ({"output": Path("corpus/a.jsonl/out")}, "is a file, not a folder"),
    ],
)
def test_mistakes_are_found_before_a_model_is_loaded(options: dict[str, Any], message: str, here: Path) -> None:
    with pytest.raises(UnmaskError, match=message):
        check_folder(job_of(here, **options))
    assert not (here / "out").exists()


REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("pico", "causal/plain/mean", {"dim": 9999}),
    ("pico", "causal/plain/mean", {"dim": 3, "precision": "binary"}),
    ("pico", "causal/plain/mean", {"instruction": "hi"}),
    ("pico", "causal/plain/mean/zscore", {"dim": 9999}),
    ("pico", "nosuchdesign", {}),
    ("./nosuchfolder", "causal/plain/mean", {}),
]


@pytest.mark.parametrize(("model", "design", "options"), REFUSED)
def test_a_refused_run_leaves_everything_as_it_was(model: str, design: str, options: dict[str, Any], here: Path) -> None:
    arguments = EmbedderArguments(model, design, PICO.options)
    (here / "empty").mkdir()
    for output in ("new/deep", "empty"):
        with pytest.raises(UnmaskError):
            run(job_of(here, output=Path(output), **options), arguments)
    assert sorted(here.iterdir()) == [here / "corpus", here / "empty"] and not list((here / "empty").iterdir())


def test_a_refused_run_keeps_no_fit_in_a_folder_with_vectors(here: Path) -> None:
    only(here, "a.txt", "one\n")
    run(job_of(here))
    before = sorted((here / "out").iterdir())
    with pytest.raises(UnmaskError, match="dim must be"):
        run(job_of(here, dim=9999), FITTED)
    assert sorted((here / "out").iterdir()) == before


def test_more_workers_than_cores_leave_no_folder(here: Path) -> None:
    with pytest.raises(UnmaskError, match="--workers 9999"):
        embed_folder(job_of(here), lambda: Workers(job_of(here), PICO, 9999))
    assert not (here / "out").exists()


def test_a_file_that_changes_meanwhile_ends_the_run_and_the_next_one_goes_on(
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


def test_packed_rows_that_end_with_cr_are_all_embedded(here: Path) -> None:
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "zstd") as stream:
        stream.write("".join(f"{row}\r" for row in ("text,id", "a,0", "b,1", "c,2", "d,3", "e,4")).encode())
    only(here, "a.txt", "").unlink()
    (here / "corpus" / "a.csv.zst").write_bytes(packed.getvalue().to_pybytes())
    assert run(job_of(here, shard_rows=2, id_column="id")).complete
    assert [row["id"] for row in rows_of(here / "out")] == ["0", "1", "2", "3", "4"]


def test_a_shard_with_fewer_rows_than_were_counted_ends_the_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(here, "a.txt", "one\ntwo\nthree\n")
    monkeypatch.setattr(embed_shard, "read_documents", lambda *given: islice(read_documents(*given), 2))
    with pytest.raises(UnmaskError, match=r"a\.txt: 3 rows from row 0 on were counted, but only 2 could be read"):
        run(job_of(here))


def test_the_output_inside_of_the_input_is_not_read(here: Path) -> None:
    job = job_of(here, output=Path("corpus") / "vectors")
    run(job)
    before = content(here / "corpus" / "vectors")
    run(job)
    assert content(here / "corpus" / "vectors") == before


def test_members_agree_on_the_bits_whatever_the_number_of_cores(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(job_of(here))
    (here / "out").rename("one-core")
    torch.set_num_threads(2)
    try:
        run(job_of(here))
    finally:
        torch.set_num_threads(1)
    assert content(here / "out") == content(Path("one-core"))
