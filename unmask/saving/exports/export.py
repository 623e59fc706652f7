"""Export: an embedder in the format of another runtime, checked there, in a folder that appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

from unmask.errors import UnmaskError, cause_of, require_package, unknown
from unmask.io.files import atomic_folder, check_output, only_writer_of
from unmask.io.seals import seal
from unmask.models.identity import loaded_from
from unmask.models.loading import dtype_name
from unmask.models.provenance import installed_versions, versions
from unmask.models.source import Source, short_name
from unmask.saving.exports.gguf import GGUF
from unmask.saving.exports.model2vec import MODEL2VEC
from unmask.saving.exports.onnx import ONNX, OPENVINO
from unmask.saving.exports.sentence_transformers import SENTENCE_TRANSFORMERS
from unmask.saving.exports.target import Checked, Exportable, Target

_UNCHECKED = Checked("not checked", "It was not checked (`--unchecked`), so its vectors may differ from the embedder's.\n")


def find_target(name: str) -> Target:
    """The target of a name. Raises UnmaskError for a name that there is not."""
    if name not in TARGETS:
        raise unknown("target", name, TARGETS)
    return TARGETS[name]


def require_ready(target: Target, folder: Path, *, unchecked: bool = False) -> None:
    """Raise UnmaskError if a package of the target is missing, or if the folder exists: before a model is loaded."""
    for module in target.writes:
        require_package(module)
    try:
        for module in () if unchecked else target.checks:
            require_package(module)
    except UnmaskError as error:
        raise UnmaskError(f"{error} It runs the check of the export; --unchecked skips the check.") from error
    check_output(folder, folder=True)
    if folder.exists():
        raise UnmaskError(f"'{folder}' exists: give a new folder.")


def export(embedder: Exportable, target: Target, folder: Path, *, unchecked: bool = False) -> Checked:
    """Write an embedder in the format of a target, with a card that says what the check found.

    unchecked: write it without a check, for a machine that lacks the runtime. Raises UnmaskError for an embedder that the target cannot
    express (it names the nearest design that can go), and for an exported model that differs from the embedder.
    """
    require_ready(target, folder, unchecked=unchecked)
    embedder.design.require_one_prompt("An export")
    embedder.design.require_dense("An export")
    if reason := target.refusal(embedder):
        raise UnmaskError(reason)
    precision = dtype_name(embedder.backbone.model)
    if target.precision is not None and precision != target.precision:
        raise UnmaskError(
            f"An export to {target.name} has weights in {target.precision}, not in {precision}: leave --dtype out."
        )
    with only_writer_of(folder), atomic_folder(folder) as scratch:
        target.write(embedder, scratch)
        try:
            checked = _UNCHECKED if unchecked else target.check(embedder, scratch)
        except (UnmaskError, OSError):
            raise
        except Exception as error:  # whatever another runtime raises, it says that it cannot run the export
            reason = cause_of(error)
            raise UnmaskError(f"The exported model does not run in its own runtime: {reason} Nothing is written.") from error
        (scratch / "README.md").write_text(card(embedder, target, checked), encoding="utf-8")
        seal(scratch)
    return checked


def card(embedder: Exportable, target: Target, checked: Checked) -> str:
    """The text of README.md: what the folder is, how it is used, what the check found, and with which versions."""
    exported, design = loaded_from(embedder.backbone.model, embedder.source), embedder.design
    model, origin = _named(exported), _named(embedder.source)
    used = versions() | installed_versions(name.partition(".")[0] for name in (*target.writes, *target.checks))
    return "\n".join(
        [
            f"# {short_name(exported.model)} as a text embedder, for {target.name}\n",
            f"Runs in {target.meaning}.\n",
            "| | |\n|---|---|",
            f"| model | {model} |",
            *([] if model == origin else [f"| made of | {origin} |"]),
            f"| design | `{design.name}` |",
            f"| attention | {embedder.backbone.proof.summary} |",
            f"| most tokens of a text with its prompt | {embedder.prompt.max_length} |\n",
            f"```python\n{target.usage(embedder)}\n```\n",
            f"## Check\n\n{checked.details}",
            "Exported with " + ", ".join(f"{name} {version}" for name, version in used.items()) + ".\n",
        ]
    )


def _named(source: Source) -> str:
    revision = f", revision `{source.revision}`" if source.revision else ""
    return f"`{source.model}`{revision}" + (f", adapter `{source.adapter_names}`" if source.adapters else "")


TARGETS: dict[str, Target] = {target.name: target for target in (SENTENCE_TRANSFORMERS, ONNX, OPENVINO, GGUF, MODEL2VEC)}
