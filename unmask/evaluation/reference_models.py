"""Reference models: trained encoders of sentence-transformers on the same tasks, as a yardstick for the designs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.encoding.encoder import Tally
from unmask.encoding.forward_pass import Vectors
from unmask.errors import UnmaskError, cause_of
from unmask.evaluation.outcomes import make_failure, make_not_applicable, make_result, model_revision
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Conditions, Failure, Result, ResultStore
from unmask.io.terminal import say
from unmask.models.bundled import resolve
from unmask.models.hub import hub_file
from unmask.models.loading import Source, pick_device
from unmask.models.progress_bars import without_loading_bars
from unmask.models.provenance import hardware, versions
from unmask.models.source import TRUSTED, code_of, is_trusted, require_own_code
from unmask.saving.sentence_encoder import ST_CONFIG
from unmask.statistics.bootstrap import Items
from unmask.tasks.kinds import is_of_words
from unmask.tasks.task import Task

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer


def score_reference_model(
    name: str, tasks: Sequence[Task], store: ResultStore, trust_remote_code: bool = False
) -> list[Result]:
    """Score a sentence-transformers model (bundled name, folder or hub id) on the tasks. What the store holds is not scored again.

    trust_remote_code: run the Python code that comes with the model. Raises UnmaskError if it needs such code and may not run it.
    """
    require_runnable(name, trust_remote_code)
    model: Any = None
    results = []
    for task, conditions in _conditions(name, tasks, trust_remote_code):
        if is_of_words(task.kind):
            store.add_failure(make_not_applicable(conditions, name, task, "the model gives vectors of texts, not of words"))
            continue
        if store.get(conditions) is None:
            say(f"{name} on {task.name}")
            if model is None:
                # in float32, as the result says; its library would take the precision of the saved weights
                model = load_sentence_transformer(name, trust_remote_code=trust_remote_code).float()
            try:
                store.add(*_score(model, conditions, task))
            except OSError:  # such as a full disk
                raise
            except Exception as error:
                store.add_failure(make_failure(conditions, name, task, error))
        if (result := store.get(conditions)) is not None:
            results.append(result)
    return results


def score_if_installed(name: str, tasks: Sequence[Task], store: ResultStore) -> list[Result] | None:
    """The same; None if the model is a bundled one that is not installed."""
    try:
        resolve(name)
    except UnmaskError as error:
        say(f"compared without {name}: {error}")
        return None
    return score_reference_model(name, tasks, store)


def reference_failures(name: str, tasks: Sequence[Task], store: ResultStore, trust_remote_code: bool = False) -> list[Failure]:
    """Why the model has no score on some of these tasks. Failures of earlier runs with other weights or data are left out."""
    return store.failures_under(conditions for _, conditions in _conditions(name, tasks, trust_remote_code))


def _conditions(name: str, tasks: Sequence[Task], trust_remote_code: bool) -> Iterator[tuple[Task, Conditions]]:
    """Each task with the conditions of its result."""
    revision, own_prompts = model_revision(Source(name)), has_own_prompts(name)
    own_code = bool(_code_of(name)) and (trust_remote_code or is_trusted(name))
    for task in tasks:
        yield (
            task,
            Conditions(
                model=name,
                model_revision=revision,
                design=SENTENCE_TRANSFORMERS,
                task=task.name,
                task_revision=task.revision,
                max_length=0,
                dtype="float32",
                trust_remote_code=own_code or None,
                own_prompts=own_prompts or None,
            ),
        )


def has_own_prompts(name: str) -> bool:
    """Whether a sentence-transformers model has prompts, or another similarity than the cosine. Raises UnmaskError."""
    path = resolve(name)
    file = Path(path) / ST_CONFIG if Path(path).is_dir() else hub_file(path, ST_CONFIG, None)
    try:
        settings = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.is_file() else {}
    except ValueError as error:
        raise UnmaskError(f"'{file}' is not JSON: {error}.") from error
    prompts, similarity = settings.get("prompts") or {}, settings.get("similarity_fn_name")
    return any(prompts.values()) or similarity not in (None, "cosine")


def _score(model: Any, conditions: Conditions, task: Task) -> tuple[Result, Items | None]:
    from unmask.tasks.mteb.evaluator import evaluate, evaluate_wrapped

    tally, dim = Tally(), 0

    def count(vectors: Vectors) -> Vectors:
        nonlocal dim
        tally.texts += len(vectors)
        dim = vectors.shape[1]
        return vectors

    def encode(texts: Sequence[str], _: str | None) -> Vectors:
        return count(model.encode(list(texts), batch_size=64, convert_to_numpy=True))

    outcome = (
        evaluate_wrapped(task, conditions.model, model, count)
        if conditions.own_prompts
        else evaluate(task, conditions.model, encode)
    )
    proof = {"attention": "as the model's own code", "hardware": hardware(pick_device("auto")), "versions": versions()}
    return make_result(conditions, conditions.model, task, outcome, dim=dim, tally=tally, provenance=proof)


@without_loading_bars()
def load_sentence_transformer(
    name: str, device: torch.device | None = None, trust_remote_code: bool = False
) -> SentenceTransformer:
    """A sentence-transformers model: bundled name, folder or hub id. device: where it computes; by default its library chooses.

    An embedder that unmask saved needs no trust in code: its module is ours. Raises UnmaskError if the model cannot be loaded, or comes
    with code that may not run: it defines the vectors of the model, and without it transformers may load another class in silence.
    """
    from sentence_transformers import SentenceTransformer

    model = resolve(name)
    require_runnable(name, trust_remote_code)
    trusted = trust_remote_code or is_trusted(name) or _is_saved_embedder(Path(model))
    device_name = None if device is None else str(device)
    try:
        return SentenceTransformer(model, device=device_name, trust_remote_code=trusted)
    except Exception as error:  # of any class, since files of users go through code of several libraries
        raise UnmaskError(f"'{name}' could not be loaded by sentence-transformers: {cause_of(error)}") from error


def require_runnable(name: str, trust_remote_code: bool = False) -> None:
    """Raise UnmaskError if a sentence-transformers model comes with Python code that the user has not allowed."""
    code = _code_of(name)
    if not code:
        return
    if not (trust_remote_code or is_trusted(name)):
        raise UnmaskError(
            f"'{name}' comes with Python code of its own, which defines its vectors, and the code may not run. Without it, another class "
            f"would be loaded in its place. If you trust the code, give --trust-remote-code, or set {TRUSTED}={name}."
        )
    require_own_code(resolve(name), Source(name, trust_remote_code=True))


def _code_of(name: str) -> set[str]:
    path = resolve(name)
    return set() if _is_saved_embedder(Path(path)) else code_of(path, None)


def _is_saved_embedder(folder: Path) -> bool:
    """Whether the only code that a folder names is our own module, so that no third party needs to be trusted."""
    try:
        modules = json.loads((folder / "modules.json").read_text("utf-8"))
        return [module["type"] for module in modules] == ["unmask.sentence_transformers_module.UnmaskModule"] and not any(
            folder.glob("*.py")
        )
    except (OSError, ValueError, TypeError, KeyError):
        return False
