"""Saved embedders: one folder that unmask and sentence-transformers both load, with equal vectors.

The folder is an ordinary transformers checkpoint (safetensors, `is_causal` in config.json) plus `unmask.json`, with
everything else that the vectors depend on, and the files that make it a sentence-transformers model: plain modules where
they can express the design, else one module of this package, which sentence-transformers loads with
`trust_remote_code=True`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from unmask.designs.design import Design, plain_attention
from unmask.designs.prompts import AND, Prompts, name_of
from unmask.encoding.features import Fit
from unmask.encoding.heads import Head, HeadOptions, load_head
from unmask.encoding.tokenization import starts_with_bos
from unmask.errors import UnmaskError, first_problem
from unmask.io.files import atomic_folder, check_output, only_writer_of
from unmask.io.paths import expanded
from unmask.io.seals import SEAL, check_seal, load_tensors, open_line, read_record, save_tensors, seal
from unmask.models.bundled import BUNDLED, HUB, is_path
from unmask.models.decoder import depth_of, rotary_border
from unmask.models.devices import is_native
from unmask.models.hub import hub_folder
from unmask.models.identity import attention_implementation, base_of_loaded, identity_of, pinned, recorded_base
from unmask.models.loading import DTYPES, Source, dtype_name, pick_device
from unmask.models.provenance import versions
from unmask.models.source import as_adapters, below, lasting_name
from unmask.saving.llm2vec_gen import read_llm2vec_gen
from unmask.saving.nv_embed import read_nv_embed
from unmask.saving.saved_adapter import adapter_modules, write_adapter
from unmask.saving.sentence_encoder import MODULES, POOLINGS, ST_CONFIG, SentenceEncoder, read_sentence_encoder

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from unmask.encoding.backbone import Backbone
    from unmask.encoding.tokenization import DesignTokenizer, PromptTokenizer


SETTINGS = "unmask.json"
# vLLM takes every *.safetensors file next to config.json for a part of the model
FIT, HEAD = "unmask_weights/fit.safetensors", "unmask_weights/head.safetensors"
ADDED = ("README.md",)
"""What training and sentence-transformers add to a saved embedder."""

_OWN_NAMES = (
    *(SETTINGS, FIT, HEAD, SEAL),
    *("config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json"),
    "model-?????-of-?????.safetensors",
    *("adapter_config.json", "adapter_model.safetensors", "mixture.json", "router.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "additional_chat_templates/*.jinja"),
    *("modules.json", ST_CONFIG, "sentence_bert_config.json", "1_Pooling/config.json"),
    *("2_Dense/config.json", "2_Dense/model.safetensors"),
)
"""The names that saving gives to files."""
# our pooling -> the name that sentence-transformers gives it
_PLAIN_POOLINGS = {ours: theirs for theirs, ours in POOLINGS.items()}
_PROBES = ("a", "", " ", " two words\n", "ü 🎉")


class Saveable(Protocol):
    """What saving reads of an embedder."""

    @property
    def backbone(self) -> Backbone: ...  # noqa: D102

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...  # noqa: D102

    @property
    def design(self) -> Design: ...  # noqa: D102

    @property
    def source(self) -> Source: ...  # noqa: D102

    @property
    def prompt(self) -> PromptTokenizer: ...  # noqa: D102

    @property
    def prompts(self) -> DesignTokenizer: ...  # noqa: D102

    @property
    def instructions(self) -> dict[str, str]: ...  # noqa: D102

    @property
    def fitted(self) -> Fit: ...  # noqa: D102


class EmbedderSettings(BaseModel):
    """What `unmask.json` holds. Unknown keys are errors: a newer format must not be half understood."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    design: str
    max_length: int
    dtype: str
    instructions: dict[str, str] = {}
    alpha: float | None = None
    head: HeadOptions | None = None
    source: str
    revision: str | None = None
    adapters: tuple[str, ...] = ()
    base_weights: str | None = None
    attention: str
    attn_implementation: str | None = None
    quantize: str | None = None
    versions: dict[str, str] = {}
    _folder: Path = Path()
    _published: SentenceEncoder | None = None

    @property
    def fit(self) -> Fit | None:
        """What was fitted and saved, or the linear layers of a model that sentence-transformers saved."""
        if self._published is not None:
            return self._published.fit
        file = self._folder / FIT
        return replace(Fit.load(file) if file.is_file() else Fit(), alpha=self.alpha)

    def trained_head(self, decoder: PreTrainedModel) -> Head | None:
        """The head that was trained and saved with this embedder, if its design has one."""
        config: Any = decoder.config.get_text_config(decoder=True)
        if self._published is not None and self._published.head is not None:
            return self._published.head(depth_of(config))
        if self.head is None:
            return None
        kind = Design.parse(self.design).one_pooling
        return load_head(kind, config.hidden_size, depth_of(config), self.head, load_tensors(self._folder / HEAD))

    def completed(self, source: Source) -> Source:
        """The source with this embedder's saved settings filled in where `source` leaves them open.

        A device that would emulate the saved precision gets float32, which differs by rounding and takes a fraction of the time.
        """
        attention = self.attn_implementation if self.attn_implementation in ("eager", "sdpa") else None  # others need hardware
        dtype = self.dtype if source.dtype == "auto" else source.dtype
        if source.dtype == "auto" and dtype != "auto" and not is_native(DTYPES[dtype], device := pick_device(source.device)):
            warnings.warn(
                f"The embedder was saved in {dtype}, which this {device.type} emulates, so it is loaded in float32. Vectors differ by "
                f"rounding; --dtype {dtype} (in Python dtype='{dtype}') gives the saved precision.",
                stacklevel=2,
            )
            dtype = "float32"
        attention, quantize = source.attn_implementation or attention, source.quantize or self.quantize
        return replace(source, dtype=dtype, attn_implementation=attention, quantize=quantize)

    def decoder_of(self, source: Source) -> Source:
        """The source of the decoder: a published model of LLM2Vec-Gen names its base model; else the source itself."""
        base = self._published.base if self._published is not None else None
        return (base and below(base, source)) or source

    def fit_for(self, design: Design, source: Source) -> Fit | None:
        """The fit, if a source loads the weights that it was made for, and the design is the saved one."""
        return self.fit if design.name == self.design and self.has_same_weights(source) else None

    def origin(self, source: Source) -> Source:
        """A source with the model that this embedder was made from in place of its folder."""
        return replace(source, model=self.source, revision=self.revision, adapters=source.adapters or self.adapters)

    def has_same_weights(self, source: Source) -> bool:
        """Whether a source loads the weights of this embedder: no other adapter over them, and no other base below its own."""
        if not source.adapters:
            return True
        if len(source.adapters) > 1 or _saved_folder(source.adapters[0], None) != self._folder:
            return False
        base = recorded_base(self._folder)
        return base is None or base == identity_of(replace(source, adapters=(), merge=False)).revision


def read_settings(model: str, revision: str | None = None) -> EmbedderSettings | None:
    """The settings of a saved embedder in a folder or on the hub, or None for a name of anything else.

    Raises UnmaskError for settings that are broken.
    """
    folder = _saved_folder(model, revision)
    if folder is None or not (file := folder / SETTINGS).is_file():
        return None
    try:
        settings = EmbedderSettings.model_validate_json(file.read_bytes())
    except ValidationError as error:
        check_seal(folder)
        raise UnmaskError(f"'{file}' is not what this version of unmask wrote: {first_problem(error)}.") from error
    settings._folder = folder
    return settings


def _read_published(model: str, revision: str | None) -> EmbedderSettings | None:
    """The settings of a model of NV-Embed or LLM2Vec-Gen, or that sentence-transformers saved; None for any other.

    Raises UnmaskError if no design expresses it.
    """
    encoder = read_nv_embed(model, revision) or read_llm2vec_gen(model, revision)
    folder = _saved_folder(model, revision, MODULES) if encoder is None else Path()
    if folder is None or (encoder is None and not (folder / MODULES).is_file()):
        return None
    if encoder is None:
        check_seal(folder)  # of a saved embedder that has lost its settings
        encoder = read_sentence_encoder(folder)
    settings = EmbedderSettings(
        design=encoder.design.name,
        max_length=encoder.max_length,
        dtype="auto",
        instructions=encoder.prompts,
        source=lasting_name(model),
        revision=revision,
        attention=encoder.design.attention,
    )
    settings._folder, settings._published = folder, encoder
    return settings


def read_saved(
    model: str, revision: str | None, adapter: str | Path | Sequence[str | Path] | None, *, names_design: bool = True
) -> EmbedderSettings | None:
    """The settings of the embedder saved with the topmost adapter, else of the one saved with the model. None if neither is one.

    The uppermost adapter was trained last, and its design goes with it. A model that sentence-transformers saved says how it is read, too.
    names_design: whether the user names a design. If not, a model of sentence-transformers that no design expresses is refused.
    """
    locations = [*((name, None) for name in reversed(as_adapters(adapter))), (model, revision)]
    saved = next((settings for location in locations if (settings := read_settings(*location)) is not None), None)
    if saved is not None:
        return saved
    try:
        if (encoder := next(filter(None, (_read_published(*location) for location in locations)), None)) is not None:
            return encoder
    except UnmaskError:
        if not names_design:
            raise
    return None


def training_sets(source: Source) -> set[str] | None:
    """The names of the data sets that an embedder was trained on, as `run.json` of `unmask train` lists them beside its model.

    Empty for a model that nothing says was trained for embeddings; None if it was, and the data are not known.
    """
    names = [*source.adapters, source.model]
    folders = [folder for name in names if (folder := _saved_folder(str(name), source.revision)) is not None]
    for folder in folders:
        if folder.name == "model" and (record := folder.parent / "run.json").is_file():
            stages = open_line(record.read_bytes())["result"]["data"]
            return {name for sets in stages.values() for name in sets}
    trained = source.adapters or any((folder / name).is_file() for folder in folders for name in (HEAD, MODULES))
    return None if trained else set()


def _saved_folder(model: str, revision: str | None, file: str = SETTINGS) -> Path | None:
    """The folder of a model. If one on the hub has this file, it is downloaded: all of it with the settings, else its JSON files."""
    if model in BUNDLED:  # loaded even if a folder here has its name
        bundled = BUNDLED[model]
        return bundled.path if bundled.kind == "sentence-transformers" and bundled.installed else None
    if not model:
        return None
    folder = expanded(model)
    if not model.startswith(HUB) and (folder.exists() or is_path(model)):
        return folder
    patterns = None if file == SETTINGS else ["*.json", "*/config.json", "*_Dense/*"]
    return hub_folder(model.removeprefix(HUB), file, revision, patterns)


def save(embedder: Saveable, folder: Path) -> None:
    """Write an embedder to a folder, which appears complete or not at all, with a seal that notices later damage.

    A model with an unmerged adapter is saved as that adapter and the name of its base model, since merging rounds. Raises
    UnmaskError if the folder holds something other than a saved embedder, or if another run saves to it.
    """
    check_output(folder, folder=True)
    if folder.exists() and any(folder.iterdir()):
        _refuse_its_base(embedder, folder)
        _may_be_replaced(folder)
    with only_writer_of(folder), atomic_folder(folder, replaces=_may_be_replaced) as scratch:
        write(embedder, scratch)
        seal(scratch)


def _may_be_replaced(folder: Path) -> bool:
    """True. Raises UnmaskError unless the folder is a saved embedder and holds nothing else."""
    if not (folder / SETTINGS).is_file():
        raise UnmaskError(f"'{folder}' exists and is not a saved embedder, so it is not overwritten.")
    own = own_files(folder) | {folder / name for name in ADDED}
    if foreign := [file for file in files_in(folder) if file not in own]:
        raise UnmaskError(
            f"'{foreign[0]}' is not of the saved embedder in its folder, which is therefore not overwritten: move it."
        )
    return True


def sentence_transformers_modules(embedder: Saveable) -> str:
    """ "plain" if sentence-transformers' own modules express the design, "unmask" if it needs this package to load it."""
    return "plain" if beyond_plain_modules(embedder) is None else "unmask"


def beyond_plain_modules(embedder: Saveable) -> str | None:
    """What sentence-transformers' own modules cannot express of an embedder; None if they can. vLLM and TEI read them, too."""
    design = embedder.design
    if mixture_of(embedder) is not None:
        return "its mixture of LoRA experts"
    if adapted(embedder):
        return "its adapter, which is not merged into the weights"
    if len(design.prompts) > 1:
        return "the average over its prompts"
    if design.attention != plain_attention(design.attention):
        return f"its rerouting, {design.attention}"
    if design.uses_routing:
        return "its routing weights"
    if design.pooling not in _PLAIN_POOLINGS:
        return f"its pooling, {AND.join(design.poolings)}"
    if not _is_plain(design, design.prompt):
        return "its layers and features"
    if embedder.prompts.max_length > rotary_border(embedder.backbone.model):  # their batches mix long and short texts
        return "the rotary positions of long texts in the batch of short ones"
    if _reads_all(embedder):
        return None
    if design.prompt != "plain":
        return f"its prompt, {name_of(design.prompt)}"
    if design.pooling == "first" or (design.pooling != "last" and next(embedder.prompt.tokenize(["a"])).start > 0):
        return "a pooling without the BOS token of its tokenizer"
    return None if _renders_equal(embedder) else "a text without the tokens that its tokenizer puts after it"


def _reads_all(embedder: Saveable) -> bool:
    """Whether the design reads what the tokenizer makes of a text, which needs no chat template."""
    return embedder.prompts.parts[0].prompt.pools_all and _is_plain(embedder.design, embedder.design.prompt)


def _is_plain(design: Design, prompt: Prompts) -> bool:
    """Whether a design pools the last layer under this prompt. Its transforms of hidden states are linear."""
    return replace(design, transforms=()) == Design(plain_attention(design.attention), prompt, design.pooling)


def _template(tokenizer: PreTrainedTokenizerBase) -> str:
    """A chat template that writes the text alone, with the tokenizer's BOS; for an empty text, the token used in its place.

    A text of spaces is empty if the tokenizer makes no token of a space. sentence-transformers has no other place to say what an empty text
    is: it would make no token, and a zero vector.
    """
    empty = "eos_token" if tokenizer.eos_token is not None else "bos_token"
    text = "messages | map(attribute='content') | join"
    spaces = tokenizer(" ", add_special_tokens=False, verbose=False)["input_ids"]
    fields = f"{text} or {empty}" if spaces else f"({text}) if {text} | trim else {empty}"
    return f"{'{{ bos_token }}' if starts_with_bos(tokenizer) else ''}{{{{ {fields} }}}}"


def _renders_equal(embedder: Saveable) -> bool:
    """Whether the template gives the tokens that this embedder reads: not with a tokenizer that appends EOS, for one."""
    tokenizer = embedder.tokenizer
    chats = [[{"role": "user", "content": text}] for text in _PROBES]
    rendered: Any = tokenizer.apply_chat_template(chats, chat_template=_template(tokenizer), tokenize=True, return_dict=True)
    return [tuple(ids) for ids in rendered["input_ids"]] == [text.ids for text in embedder.prompt.tokenize(_PROBES)]


def write(embedder: Saveable, folder: Path) -> None:
    """Write the files of an embedder into an empty folder."""
    base = None
    if (mixture := mixture_of(embedder)) is not None:
        mixture.write_files(folder)
    elif adapted(embedder):
        base = pinned(base_of_loaded(embedder.backbone.model) or embedder.source, embedder.backbone.model)
        write_adapter(embedder.backbone.model, folder, base)
    else:
        if embedder.design.is_sparse and not embedder.backbone.output_layer.tied:
            raise UnmaskError(
                "A saved embedder holds no language-model head, and this model's is not tied to its input embeddings. Load the model "
                f"itself with '{embedder.design.name}' each time."
            )
        with embedder.backbone.turn(), _undivided(embedder.backbone.model):
            # its config says the attention, and others may read it in another one
            embedder.backbone.model.save_pretrained(folder)
    _write_tokenizer(embedder, folder)
    head = embedder.backbone.head if embedder.design.needs_head else None  # another design of a headed model has none
    if head is not None or embedder.fitted.tensors:
        (folder / HEAD).parent.mkdir()
    if head is not None:
        save_tensors(folder / HEAD, head.state_dict())
    if embedder.fitted.tensors:
        replace(embedder.fitted, alpha=None).save(folder / FIT)  # alpha is in unmask.json
    design, source = embedder.design, embedder.source
    chain = getattr(embedder.backbone.model, "merged_chain", None)
    settings = EmbedderSettings(
        design=design.name,
        max_length=embedder.prompts.max_length,
        dtype=dtype_name(embedder.backbone.model),
        instructions=embedder.instructions,
        alpha=embedder.fitted.alpha,
        head=head.options if head else None,
        source=lasting_name((base_of_loaded(embedder.backbone.model) or source).model if chain else source.model),
        revision=source.revision,
        adapters=chain or tuple(map(lasting_name, source.adapters)),
        base_weights=base.base_weights if base else None,
        attention=embedder.backbone.proof.summary,
        attn_implementation=attention_implementation(embedder.backbone.model),
        quantize=source.quantize
        if adapted(embedder) or mixture_of(embedder) is not None
        else None,  # else the files are quantised
        versions=versions(),
    )
    (folder / SETTINGS).write_text(settings.model_dump_json(indent=2) + "\n", encoding="utf-8")
    _write_sentence_transformers(embedder, folder)


@contextmanager
def _undivided(model: PreTrainedModel) -> Iterator[None]:
    """The weights of RWKV as stored on disk. Its first forward pass divides the weights of later layers, and would again after loading."""
    divided: list[Any] = [module for module in model.modules() if getattr(module, "layers_are_rescaled", False)]

    def rescale(training: bool) -> None:
        for module in divided:
            before, module.training = module.training, training
            module._rescale_layers()  # it multiplies in training, by powers of two
            module.training = before

    rescale(training=True)
    try:
        yield
    finally:
        rescale(training=False)


def write_over(embedder: Saveable, folder: Path) -> None:
    """Write the files of an embedder into a folder. Files of an earlier embedder there go, files of others stay.

    All is written into a scratch folder first, since experts may be copied from the folder itself. Raises UnmaskError for the folder of
    another model.
    """
    earlier = own_files(folder)
    models = sorted(file for file in earlier if file.name != ST_CONFIG)  # sentence-transformers has written this one itself
    if models and not (folder / SETTINGS).is_file():
        raise UnmaskError(
            f"'{models[0]}' belongs to a model that is not a saved embedder, so it is not overwritten: choose another folder."
        )
    (folder / SEAL).unlink(missing_ok=True)  # sentence-transformers has already changed a file that it lists
    _refuse_its_base(embedder, folder)
    with TemporaryDirectory(dir=folder, prefix=".unmask-") as scratch:
        write(embedder, Path(scratch))
        replace_files(folder, earlier, Path(scratch))


def _refuse_its_base(embedder: Saveable, folder: Path) -> None:
    """Raise UnmaskError if an adapter or a mixture would replace the base model that it needs."""
    base = base_of_loaded(embedder.backbone.model)
    needs_it = adapted(embedder) or mixture_of(embedder) is not None
    if needs_it and base is not None and lasting_name(base.model) == str(folder.resolve()):
        raise UnmaskError(f"'{folder}' holds the base model of this embedder, so it is not overwritten: give another folder.")


def mixture_of(embedder: Saveable) -> Any:
    """The mixture that the model is, or None."""
    return getattr(embedder.backbone.model, "mixture", None)


def adapted(embedder: Saveable) -> bool:
    """Whether the model has adapters of PEFT, of any kind, that are not merged."""
    return bool(adapter_modules(embedder.backbone.model))


def _write_tokenizer(embedder: Saveable, folder: Path) -> None:
    # sentence-transformers truncates on the tokenizer's side, and we keep the beginning of a text
    tokenizer: Any = embedder.tokenizer
    message = {"model_max_length": embedder.prompts.max_length, "padding_side": "right", "truncation_side": "right"}
    if tokenizer.pad_token is None:  # sentence-transformers pads with one
        message["pad_token"] = tokenizer.eos_token
    before = {name: getattr(tokenizer, name) for name in message}
    try:
        for name, value in message.items():
            setattr(tokenizer, name, value)
        # transformers writes what the tokenizer was made with, not what was set since
        tokenizer.init_kwargs["split_special_tokens"] = tokenizer.split_special_tokens
        tokenizer.save_pretrained(folder)
    finally:
        for name, value in before.items():
            setattr(tokenizer, name, value)


def _write_sentence_transformers(embedder: Saveable, folder: Path) -> None:
    plain = sentence_transformers_modules(embedder) == "plain"
    types = [
        ("", "sentence_transformers.base.modules.transformer.Transformer"),
        ("1_Pooling", "sentence_transformers.sentence_transformer.modules.pooling.Pooling"),
    ]
    if embedder.design.transforms:
        types.append(("2_Dense", "sentence_transformers.base.modules.dense.Dense"))
    modules = types if plain else [("", "unmask.sentence_transformers_module.UnmaskModule")]
    listed = [{"idx": k, "name": str(k), "path": path, "type": kind} for k, (path, kind) in enumerate(modules)]
    _write_json(folder / MODULES, listed)
    message = {"model_type": "SentenceTransformer", "prompts": embedder.instructions, "similarity_fn_name": "cosine"}
    _write_json(folder / ST_CONFIG, message)
    if plain:
        # a template of our own: the model's would make a chat of a plain string
        forward: dict[str, Any] = {"method": "forward", "method_output_name": "last_hidden_state"}
        config: dict[str, Any] = {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": forward},
            "module_output_name": "token_embeddings",
        }
        if not _reads_all(embedder):
            config["modality_config"]["message"] = {**forward, "format": "flat"}
            chat = {"chat_template": _template(embedder.tokenizer), "restore_suffix": False}
            config["processing_kwargs"] = {"chat_template": chat}
        _write_json(folder / "sentence_bert_config.json", config)
        (folder / "1_Pooling").mkdir()
        dim = embedder.backbone.model.config.get_text_config(decoder=True).hidden_size
        pooling = {"embedding_dimension": dim, "pooling_mode": _PLAIN_POOLINGS[embedder.design.one_pooling]}
        _write_json(folder / "1_Pooling" / "config.json", {**pooling, "include_prompt": True})
        if embedder.design.transforms:
            _write_dense(folder / "2_Dense", *embedder.fitted.linear(embedder.design, dim))


def _write_dense(folder: Path, weight: Tensor, bias: Tensor) -> None:
    """Write a linear layer as a module of sentence-transformers."""
    folder.mkdir()
    config = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": True}
    _write_json(folder / "config.json", {**config, "activation_function": "torch.nn.modules.linear.Identity"})
    save_tensors(folder / "model.safetensors", {"linear.weight": weight, "linear.bias": bias})


def _write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def own_files(folder: Path) -> set[Path]:
    """The files of the saved embedder in a folder: those in its seal, or, without one (sentence-transformers), those that saving names."""
    files = files_in(folder)
    if (sealed := read_record(folder / SEAL)) is not None:
        return {folder / name for name in (*sealed, SEAL)} & set(files)
    return {file for file in files if any(fnmatchcase(file.relative_to(folder).as_posix(), name) for name in _OWN_NAMES)}


def files_in(folder: Path) -> list[Path]:
    """All files in a folder and its subfolders, sorted."""
    return sorted(path for path in folder.rglob("*") if not path.is_dir())


def replace_files(folder: Path, earlier: Iterable[Path], scratch: Path) -> None:
    """Move all files of a scratch folder into a folder, and remove the earlier files there that were not replaced."""
    removed = set(earlier)
    for file in files_in(scratch):
        target = folder / file.relative_to(scratch)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
        removed.discard(target)
    for file in removed:
        file.unlink(missing_ok=True)
    for emptied in sorted({parent for file in removed for parent in file.parents if folder in parent.parents}, reverse=True):
        with suppress(OSError):  # something else lies there
            emptied.rmdir()
