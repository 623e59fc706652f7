"""Recording: runs texts through a mixture of experts and writes what each router does with each token, a part at a time.

Which texts a part holds, and which batches it is computed in, depends on the texts alone. So a recording that was stopped continues with
the same parts, and with the same bytes. Only one part is in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from unmask.encoding.backbone import Backbone, HiddenRead, RoutingRead, TokenBatch
from unmask.encoding.batching import collate, plan
from unmask.encoding.cached_pass import chunks
from unmask.encoding.encoder import Encoder
from unmask.encoding.pooling import POOLINGS
from unmask.encoding.tokenization import TokenizedText, tokenize_bare
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.io.files import atomic_folder, only_run_in
from unmask.io.seals import seal
from unmask.io.terminal import progress_bar
from unmask.io.unicode import encodable
from unmask.models.decoder import model_lock, vocabulary_of
from unmask.models.loading import dtype_name
from unmask.models.provenance import fingerprint_of
from unmask.models.routers import why_no_routers
from unmask.moe.routing.labelled_texts import LabelledTexts
from unmask.moe.routing.record import (
    EXPERTS,
    PARTS,
    RECORD,
    Choices,
    Label,
    Point,
    RecordSettings,
    RoutingRecord,
    Texts,
    is_whole,
    part_folder,
    write_part,
)
from unmask.probing.word_probe import assign_words
from unmask.runs.runs import differences

_PART_VALUES, _MOST, _LEAST = 2**22, 8192, 256
"""Most probabilities of a part, and bounds of its tokens."""
_PROMPT = "plain"


@dataclass(frozen=True)
class TokenizedTexts:
    """Texts as the model reads them. spans: for each text, the characters of its tokens, (token, 2). masks: which of its tokens are
    recorded. tags: labels of its tokens, (label, token).
    """

    texts: list[TokenizedText]
    spans: list[NDArray[np.int32]]
    masks: list[NDArray[np.bool_]]
    tags: list[NDArray[np.int16]]


def record_routing(
    encoder: Encoder,
    texts: LabelledTexts,
    folder: Path,
    *,
    sample: int | None = None,
    seed: int = 0,
) -> RoutingRecord:
    """Record what the routers of a model do with texts; what is recorded already stays.

    sample: number of tokens to record, drawn from all. Every token is computed, since later tokens see it. Tokens before the text
    (BOS) are not recorded. Raises UnmaskError for a dense model, and for a folder that holds another record.
    """
    backbone = encoder.backbone
    if not backbone.routers:
        raise UnmaskError(
            f"'{encoder.source.model}' {why_no_routers(backbone.model)}. Give a mixture of experts, or make one: `unmask upcycle`, "
            "`unmask mix`."
        )
    labels = [Label(name=name, of="text", values=tuple(texts.values(name))) for name in texts.labels]
    labels += [Label(name=name, of="token", values=tuple(texts.values(name))) for name in texts.token_labels]
    tokenized = tokenize(encoder, texts, labels, sample, seed)
    mixture, lengths = getattr(backbone.model, "mixture", None), [len(text.ids) for text in tokenized.texts]
    # In a mixture of ours, only its own points are recorded: the experts of its base have no names. Blocks may share a decision, which is
    # recorded once, where it is made.
    point_of = routing_points(backbone)
    modules = list(point_of)
    if mixture is not None:
        modules = list(mixture.deciding_points.values())[: 1 if mixture.routing.router == "final" else None]
    points = tuple(point for module, point in point_of.items() if module in modules)
    part_tokens = int(np.clip(_PART_VALUES // sum(point.experts for point in points), _LEAST, _MOST))
    bounds = list(chunks(lengths, part_tokens))
    settings = RecordSettings(
        model=encoder.source.model,
        weights=str(encoder.provenance["weights"]),
        attention=backbone.attention,
        dtype=dtype_name(backbone.model),
        max_length=encoder.prompt_tokenizer(_PROMPT).max_length,
        batch_tokens=encoder.batch_tokens,
        data=fingerprint_of(
            [part for text in texts.texts for part in (text.text, *text.values, *(tag for tags in text.tags for tag in tags))]
        ),
        sources=texts.sources,
        texts=len(texts.texts),
        truncated=sum(text.truncated for text in tokenized.texts),
        tokens=sum(int(mask.sum()) for mask in tokenized.masks),
        tokens_of_texts=sum(lengths),
        sample=sample,
        seed=seed,
        labels=tuple(labels),
        experts=tuple(expert.name for expert in mixture.experts) if mixture else None,
        points=points,
        dim=int(backbone.model.config.get_text_config(decoder=True).hidden_size),
        part_tokens=part_tokens,
        parts=len(bounds),
        provenance=encoder.provenance | {"attention": encoder.backbone.attention},
    )
    with only_run_in(folder):
        check_folder(folder)
        before = RecordSettings.read(folder / RECORD)
        if before is None:
            settings.write(folder / RECORD)
        elif before.digest != settings.digest:
            old, new = (record.model_dump(mode="json", exclude={"model", "provenance"}) for record in (before, settings))
            changes = differences(old, new)
            raise UnmaskError(f"'{folder}' holds a record of something else: {'; '.join(changes[:3])}. Give another folder.")
        record = RoutingRecord(folder, before or settings)
        with progress_bar("recording texts", settings.texts) as advance:
            for part, (start, end) in enumerate(bounds):
                part_path = part_folder(folder, part)
                if not is_whole(part_path, record.settings):
                    with atomic_folder(part_path, replaces=lambda _: True) as scratch:
                        _record_part(
                            scratch,
                            backbone,
                            list(point_of.values()),
                            record.settings,
                            texts=texts,
                            tokenized=tokenized,
                            numbers=range(start, end),
                        )
                        seal(scratch)
                advance(end - start)
    return record


def tokenize(encoder: Encoder, texts: LabelledTexts, labels: Sequence[Label], sample: int | None, seed: int) -> TokenizedTexts:
    """Tokens of the texts without a prompt, the labels of these tokens, and which of them are recorded."""
    prompt = encoder.prompt_tokenizer(_PROMPT)
    tokenized = list(prompt.tokenize([text.text for text in texts.texts]))
    spans = []
    for text, text_tokens in zip(texts.texts, tokenized, strict=True):
        bounds = np.zeros((len(text_tokens.ids), 2), np.int32)  # an empty text is read as a token without characters
        offsets = tokenize_bare(encoder.tokenizer, encodable(text.text)).offsets[: len(bounds)]
        bounds[: len(offsets)] = np.array(offsets, np.int32).reshape(-1, 2)
        spans.append(bounds)
    token_labels = [label for label in labels if label.of == "token"]
    tags = [np.full((len(token_labels), len(text.ids)), -1, np.int16) for text in tokenized]
    if token_labels:
        code_of = [{value: code for code, value in enumerate(label.values)} for label in token_labels]
        for text, text_tags, text_tokens in zip(texts.texts, tags, tokenized, strict=True):
            words = assign_words(text.sentence, tokenize_bare(encoder.tokenizer, text.text).offsets)
            for number, positions in reversed(list(enumerate(words))):  # a token of two words gets the label of the first
                inside_text = [position for position in positions if position < len(text_tokens.ids)]
                text_tags[:, inside_text] = [[codes[values[number]]] for codes, values in zip(code_of, text.tags, strict=True)]
    inside = [np.arange(len(text.ids)) >= text.start for text in tokenized]
    mask = np.concatenate(inside)
    if sample is not None and sample < (total := int(mask.sum())):
        sampled = np.zeros(total, bool)
        sampled[np.random.default_rng(seed).choice(total, sample, replace=False)] = True
        mask[mask] = sampled
    ends = np.cumsum([len(text.ids) for text in tokenized])
    return TokenizedTexts(tokenized, spans, np.split(mask, ends[:-1]), tags)


def routing_points(backbone: Backbone) -> dict[nn.Module, Point]:
    """The routers of a model in the order in which they run, with the numbers of experts that they score and choose.

    That need not be the order of modules. Raises UnmaskError if a router hides what it chooses.
    """
    vocabulary = vocabulary_of(backbone.model)
    probe = TokenizedText(tuple((7919 * token + 3) % vocabulary for token in range(16)), 0)
    names = {module: name for name, module in backbone.model.named_modules()}
    layer_of = {
        module: layer_number for layer_number, layer in enumerate(backbone.layers, start=1) for module in layer.modules()
    }
    return {
        module: Point(
            name=names[module],
            layer=layer_of.get(module, 0),
            experts=weights.shape[-1],
            chosen=int((weights != 0).sum(dim=-1).max()),
        )
        for module, weights in read_routers(backbone, collate([probe], 0), "topk")
    }


@torch.inference_mode()  # type: ignore[untyped-decorator]
def read_routers(
    backbone: Backbone, batch: TokenBatch, kind: str
) -> list[tuple[nn.Module, Float[Tensor, "text token expert"]]]:
    """The routers of a model in the order in which they run, and what each gives the tokens of a batch, in fp32 on the CPU."""
    modules: list[nn.Module] = []
    outputs: list[Tensor] = []

    def keep(weights: Tensor, _: Tensor) -> Tensor:
        outputs.append(weights.float().cpu())
        return weights[:, 0]

    with model_lock(backbone.model), ExitStack() as hooks:
        for router in backbone.routers:
            hooks.callback(router.module.register_forward_hook(lambda module, *_: modules.append(module)).remove)
        backbone.read(batch, [RoutingRead(kind, keep)])
    return list(zip(modules, outputs, strict=True))


def check_folder(folder: Path) -> None:
    """Raise UnmaskError for a folder that holds anything but a record."""
    if folder.is_dir() and not (folder / RECORD).is_file():
        foreign = [
            path.name for path in folder.iterdir() if not path.name.startswith(".") and path.name not in (PARTS, EXPERTS)
        ]
        if foreign:
            raise UnmaskError(f"'{folder}' holds other files ({foreign[0]}) and no record: give another folder.")


def _record_part(
    scratch: Path,
    backbone: Backbone,
    all_points: Sequence[Point],
    settings: RecordSettings,
    texts: LabelledTexts,
    tokenized: TokenizedTexts,
    numbers: range,
) -> None:
    part_texts = tokenized.texts[numbers.start : numbers.stop]
    masks = tokenized.masks[numbers.start : numbers.stop]
    sizes = np.array([mask.sum() for mask in masks])
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    probabilities = [np.empty((total, point.experts), np.float16) for point in settings.points]
    selected = [np.empty((total, point.chosen), np.int16) for point in settings.points]
    gates = [np.empty((total, point.chosen), np.float16) for point in settings.points]
    hidden = np.empty((len(part_texts), settings.dim), np.float32)
    router_indices = [all_points.index(point) for point in settings.points]
    for batch in plan([len(text.ids) for text in part_texts], settings.batch_tokens):
        rows = np.concatenate([np.arange(ends[text] - sizes[text], ends[text]) for text in batch])
        hidden[batch], router_probabilities, router_gates = _read_batch(
            backbone, all_points, [part_texts[text] for text in batch], [masks[text] for text in batch]
        )
        for index, (point, router_index) in enumerate(zip(settings.points, router_indices, strict=True)):
            if not torch.isfinite(router_probabilities[router_index]).all():
                raise UnmaskError(f"The router '{point.name}' gives numbers that are not finite. Use --dtype float32.")
            if len(rows) and int((router_gates[router_index] != 0).sum(dim=1).max()) > point.chosen:
                raise UnmaskError(
                    f"The router '{point.name}' chooses more experts for some tokens than for others, and this is not recorded."
                )
            best = router_gates[router_index].float().topk(point.chosen, dim=1)
            probabilities[index][rows] = router_probabilities[router_index].half().cpu().numpy()
            selected[index][rows] = torch.where(best.values != 0, best.indices, -1).to(torch.int16).cpu().numpy()
            gates[index][rows] = best.values.half().cpu().numpy()
    tags = np.concatenate([tokenized.tags[number][:, mask] for number, mask in zip(numbers, masks, strict=True)], axis=1)
    of_tokens = [label.name for label in settings.labels if label.of == "token"]
    choices = Choices(
        texts=np.repeat(np.arange(numbers.start, numbers.stop, dtype=np.int32), sizes),
        positions=np.concatenate([np.flatnonzero(mask) for mask in masks]).astype(np.int32),
        ids=np.concatenate([np.asarray(text.ids, np.int32)[mask] for text, mask in zip(part_texts, masks, strict=True)]),
        tags=dict(zip(of_tokens, tags, strict=True)),
        probabilities=probabilities,
        chosen=selected,
        gates=gates,
    )
    labels = {}
    for index, label in enumerate(label for label in settings.labels if label.of == "text"):
        code_of = {value: number for number, value in enumerate(label.values)}
        labels[label.name] = np.array([code_of[texts.texts[number].values[index]] for number in numbers], np.int16)
    write_part(
        scratch,
        settings,
        first_text=numbers.start,
        texts=Texts([encodable(texts.texts[number].text) for number in numbers], sizes.astype(np.int32), labels),
        spans=tokenized.spans[numbers.start : numbers.stop],
        hidden=hidden,
        choices=choices,
    )


@torch.inference_mode()  # type: ignore[untyped-decorator]
def _read_batch(
    backbone: Backbone, all_points: Sequence[Point], texts: Sequence[TokenizedText], masks: Sequence[NDArray[np.bool_]]
) -> tuple[NDArray[np.float32], Sequence[Tensor], Sequence[Tensor]]:
    """Mean hidden states of texts; and for each routing point the probabilities and the gates of the tokens under the masks."""
    batch = collate(texts, 0)
    token_mask = torch.zeros_like(batch.attention_mask)
    for row, mask in enumerate(masks):
        token_mask[row, : len(mask)] = torch.from_numpy(mask)

    def select(weights: Float[Tensor, "text token expert"], _: Bool[Tensor, "text token"]) -> Float[Tensor, "row expert"]:
        return weights[token_mask.to(weights.device)]

    probabilities, gates = RoutingRead("softmax", select), RoutingRead("topk", select)
    mean = HiddenRead(backbone.depth, POOLINGS["mean"])
    values = backbone.read(batch, [probabilities, gates, mean])
    sizes = [point.experts for point in all_points]
    return values[mean].float().cpu().numpy(), values[probabilities].split(sizes, dim=1), values[gates].split(sizes, dim=1)
