"""The trainee: a loaded model that goes through the stages of a recipe, with the parts of it that train in each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.backbone import Backbone
from unmask.encoding.heads import CompressionTokens, HeadOptions, LayerAttention, build_head, count_parameters
from unmask.errors import UnmaskError
from unmask.models.decoder import body_of, depth_of, vocabulary_of
from unmask.models.loading import Source, load_base_language_model, load_decoder, pick_dtype, precision_of
from unmask.saving.folder import adapted, mixture_of
from unmask.starter import reference_texts
from unmask.training.cpu_kernels import restore_experts, speed_up_experts
from unmask.training.lora import (
    ROUTER,
    Coverage,
    add_lora,
    coverage,
    require_coverage,
    router_kinds,
    unfreeze_kinds,
    weight_kinds,
)
from unmask.training.recipe import Recipe
from unmask.training.stages import STAGES

if TYPE_CHECKING:
    from peft import PeftModel


@dataclass
class Trainee:
    """A model in training. language_model: with its head, if a stage predicts tokens. adapter: the LoRA of the present stage."""

    recipe: Recipe
    embedder: Embedder
    language_model: nn.Module | None
    adapter: PeftModel | None = None

    @classmethod
    def load(cls, recipe: Recipe, design: Design, seed: int) -> Trainee:
        """Load the base model of a recipe, with a new head if the design has one. Raises UnmaskError for a model that cannot be trained."""
        require_trainable(recipe, design)
        source = Source(recipe.model, dtype="float32" if recipe.trains_weights else recipe.dtype, quantize=recipe.quantize)
        language_model = None
        if any(STAGES[name].predicts_tokens for name in recipe.stages):
            language_model, tokenizer = load_base_language_model(source)
            body = body_of(language_model)
        else:
            body, tokenizer = load_decoder(source)
        torch.manual_seed(seed)
        head = None
        if design.needs_head:
            config: Any = body.config.get_text_config(decoder=True)
            head = build_head(design.one_pooling, config.hidden_size, depth_of(config), recipe.head or HeadOptions())
        if isinstance(head, CompressionTokens):
            embeddings: Any = body.get_input_embeddings()
            sample = torch.linspace(0, vocabulary_of(body) - 1, 1024, device=body.device).long()
            head.start(embeddings(sample).cpu())  # not its weights: some models scale what they look up
        embedder = Embedder.from_model(body, tokenizer, design, source=source, max_length=recipe.max_length, head=head)
        _check_result_holds_weights(recipe, embedder)
        _ = embedder.fitted  # of the untrained model: it is where training starts, and is saved with the result
        if isinstance(head, LayerAttention) and head.options.centred:
            # the layer matrix starts at minus each layer's mean: as a constant, it would make every cosine 0.95 and more
            head.centre(embedder.encoder.layer_states(reference_texts(), embedder.design.prompt))
        return cls(recipe, embedder, language_model)

    @property
    def backbone(self) -> Backbone:
        """The decoder in training."""
        return self.embedder.backbone

    @property
    def depth(self) -> int | None:
        """The highest layer that the design reads, if it names layers by number; None for all."""
        return max(self.embedder.design.numbered_layers, default=None)

    def start_stage(self, stage: str, seed: int) -> list[Coverage]:
        """Make the weights of a stage trainable, and list them. Raises UnmaskError if less would train than the recipe names."""
        pools = STAGES[stage].pools
        head, body = self.backbone.head, self.backbone.model
        (self.language_model or body).requires_grad_(False)
        depth = self.depth if self.recipe.train == "lora" else None
        kinds = weight_kinds(body, self.backbone.layers, depth)
        torch.manual_seed(seed)
        if self.recipe.train == "lora":
            self.adapter = add_lora(body, self.backbone.layers, self.recipe.lora, depth)
            covered = coverage(body, kinds)
            require_coverage(covered, self.recipe.lora)
        else:
            kinds |= router_kinds(body)
            body.requires_grad_(self.recipe.train == "full")
            if isinstance(self.recipe.train, tuple):
                unfreeze_kinds(body, kinds, self.recipe.train)
            covered = coverage(body, kinds)
        precision = pick_dtype(self.recipe.dtype, self.backbone.device)
        self.backbone.autocast = precision if precision != torch.float32 and self.recipe.train != "head" else None
        if self.backbone.autocast is not None:
            speed_up_experts(self.backbone.model)
        if self.adapter is not None:
            cast_inputs(self.adapter, self.backbone.autocast is None)
        if head is not None:
            head.requires_grad_(pools)
            sizes = count_parameters(head).items()
            covered += [Coverage(f"head: {part}", 1, int(pools), size, size * pools) for part, size in sizes if part != "total"]
        return covered

    def finish_stage(self, merge: bool) -> None:
        """End a stage. merge: fold the adapter into the weights; otherwise it stays separate."""
        if self.adapter is not None and merge:
            self.adapter.merge_and_unload()
            self.adapter = None
        if self.adapter is not None:
            cast_inputs(self.adapter, True)
        self.backbone.autocast = None
        restore_experts(self.backbone.model)

    def prepare_for_saving(self) -> None:
        """Put the embedder in evaluation mode and in the precision of the recipe, as `save` writes it."""
        self.backbone.model.eval()
        if self.backbone.head is not None:
            self.backbone.head.eval()
        if not self.recipe.trains_weights:
            return
        dtype = pick_dtype(self.recipe.dtype, self.backbone.device)
        mixture = mixture_of(self.embedder)
        # the routers of LoRA experts stay in fp32, as in a mixture that is loaded
        routers = {id(weight) for weight in mixture.router_weights} if mixture else set()
        for weight in self.backbone.model.parameters():  # not model.to(), which would round the buffers of rotary positions
            if id(weight) not in routers:
                weight.data = weight.data.to(dtype)
        if mixture is not None:
            mixture.refresh()

    def save(self, folder: Path) -> None:
        """Write the embedder."""
        base = self.embedder.source
        source = replace(base, model=str(Path(base.model).resolve()) if Path(base.model).is_dir() else base.model)
        self.embedder.encoder = replace(self.embedder.encoder, source=source)
        # a stage that pools nothing may have data with an instruction that the prompt has no place for
        self.embedder.instructions = instructions(self.recipe) if self.embedder.prompts.takes_instruction else {}
        self.embedder.save_pretrained(folder)


def training_precision(recipe: Recipe) -> str:
    """The precision that a recipe multiplies in on this machine: bfloat16, for example, where `dtype` is auto."""
    return precision_of(Source(recipe.model, dtype=recipe.dtype))


def _check_result_holds_weights(recipe: Recipe, embedder: Embedder) -> None:
    """Raise UnmaskError if weights would train that the result does not hold, because it names the base below an adapter or experts."""
    mixture = mixture_of(embedder)
    if recipe.train == "head" or (mixture is None and not adapted(embedder)):
        return
    if mixture is None:
        raise UnmaskError(
            f"'{recipe.model}' is an adapter on its base model, so other weights that train would be lost: save the two merged "
            'first, by Embedder.from_pretrained(MODEL, merge=True).save_pretrained(FOLDER), or set train = "head".'
        )
    if recipe.train != (ROUTER,) or len(embedder.backbone.routers) > len(mixture.points):
        raise UnmaskError(
            f"'{recipe.model}' is a mixture of LoRA experts. Its folder keeps experts and base unchanged, so what they learn would be "
            'lost: set train = ["router"] (if the base has no routers), or train = "head".'
        )
    mixture.routing.require_gradient()
    pooling = [name for name in recipe.stages if STAGES[name].pools and recipe.stage(name).checkpointing]
    if pooling and not mixture.routing.is_recomputable:
        raise UnmaskError(
            f"Stage '{pooling[0]}' cannot have checkpointing = true. The routers of '{recipe.model}' decide for more than one block "
            "(level 'sequence', router 'final' or a span). A part of the batch would be computed again by the decisions of another "
            "part: leave checkpointing out, and lower cache_tokens to save memory."
        )


def cast_inputs(adapter: PeftModel, cast: bool) -> None:
    """Whether peft casts every input to the adapter's fp32: under autocast it need not, which saves a fifth of the time."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in adapter.modules():
        if isinstance(module, BaseTunerLayer):
            module.cast_input_dtype_enabled = cast


def instructions(recipe: Recipe) -> dict[str, str]:
    """The instructions that the embedder was trained with, by the name of their data set.

    Instructions of documents are called NAME-document. If there is only one data set, they are also called "query" and "document".
    """
    used = {name: recipe.data[name] for stage in recipe.stages for name in recipe.stage(stage).data}
    instructions = {name: source.instruction for name, source in used.items()}
    instructions |= {f"{name}-document": source.document_instruction for name, source in used.items()}
    if len(used) == 1:
        [source] = used.values()
        instructions |= {"query": source.instruction, "document": source.document_instruction}
    return {name: instruction for name, instruction in instructions.items() if instruction}


def require_trainable(recipe: Recipe, design: Design) -> None:
    """Raise UnmaskError if a design cannot be trained, or if a stage of the recipe would train nothing. No model is loaded."""
    design.require_one_prompt("Training")
    design.require_dense("Training")
    if design.needs_fit and design.needs_head:
        raise UnmaskError(
            f"'{design.name}' is fitted on reference texts, and a new head has no vectors to fit yet: train the design without "
            "that, and fit the result."
        )
    for stage in recipe.stages:
        STAGES[stage].require_trainable(recipe.train, design)
    if recipe.train != "head":
        return
    if not design.needs_head:
        raise UnmaskError(f"'{design.name}' has no head, so with train = \"head\" nothing would train.")
    for stage in recipe.stages:
        if not STAGES[stage].pools:
            raise UnmaskError(f"Stage '{stage}' trains no head, so with train = \"head\" nothing would train.")
