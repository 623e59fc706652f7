"""A loaded model: a decoder under a proven attention, its tokenizer, and where both come from. It encodes texts by many designs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from unmask.designs.design import Design
from unmask.designs.prompts import Prompts
from unmask.encoding.backbone import Backbone
from unmask.encoding.batching import default_batch_tokens
from unmask.encoding.encode import Vectors, fit_designs, group_by_pass
from unmask.encoding.questions import Question, alike, encode_questions
from unmask.encoding.several_prompts import DesignTokenizer, tokenizer_of
from unmask.encoding.tokenization import MAX_LENGTH
from unmask.io.terminal import progress_bar
from unmask.models.identity import attention_implementation, identity_of_loaded
from unmask.models.loading import Source, dtype_name
from unmask.models.provenance import hardware, versions
from unmask.starter import reference_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to encode texts.

    language_model: the whole model with its output layer, for probes that read its predictions. max_length: most tokens of a text,
    unless a call says otherwise.
    """

    backbone: Backbone
    tokenizer: PreTrainedTokenizerBase
    source: Source
    language_model: Any = None
    max_length: int = MAX_LENGTH

    def limit(self, max_length: int | None) -> int:
        """Most tokens of one text: as requested, else this model's own limit."""
        return max_length or self.max_length

    def prompt_tokenizer(self, prompt: Prompts, max_length: int | None = None) -> DesignTokenizer:
        """The tokenizer of a prompt, or of several. Its limit never exceeds the positions of the model."""
        limit = self.backbone.within_positions(self.limit(max_length))
        return tokenizer_of(self.tokenizer, prompt, limit, self.backbone.vocabulary)

    @property
    def provenance(self) -> dict[str, Any]:
        """Everything about the model that a result depends on, its attention included."""
        return provenance(self.backbone, self.source) | {"attention": self.backbone.attention}

    def encode(
        self,
        designs: Sequence[Design],
        texts: Sequence[str],
        *,
        max_length: int | None = None,
        batch_tokens: int | None = None,
    ) -> dict[Design, Vectors]:
        """Vectors of every design, each of shape (text, dim). Designs that share attention and prompt share the forward passes.

        Causal designs of the last token also share the reading of a text, if their prompts begin alike. Standardisation and alpha are
        fitted on the reference texts of this package. Raises UnmaskError for a design that the model cannot serve, before any text is
        computed, and AttentionError for an attention that the model does not obey.
        """
        backbone = self.backbone
        for design in designs:
            design.require_dense("This command")
            backbone.check(design)
        vectors: dict[Design, Vectors] = {}
        budget = batch_tokens or default_batch_tokens(backbone)
        groups = group_by_pass(designs)
        prompts = {prompt: self.prompt_tokenizer(prompt, max_length) for _, prompt in groups}
        with progress_bar("reading texts", len(groups) * len(texts)) as advance:
            for passes in alike(groups, prompts):
                attention = passes[0][0]
                if backbone.attention != attention:
                    backbone.set_attention(attention)
                questions = []
                for key in passes:
                    tokenizer = prompts[key[1]]
                    fits = fit_designs(backbone, tokenizer, groups[key], reference_texts(), batch_tokens=budget)
                    questions.append(Question(tokenizer, fits, list(tokenizer.tokenize(texts))))
                answers = encode_questions(backbone, questions, batch_tokens=budget, progress=advance)
                vectors |= {design: values for answer in answers.vectors for design, values in answer.items()}
        return vectors


def provenance(backbone: Backbone, source: Source) -> dict[str, Any]:
    """Where a model comes from, how it attends, and what computed."""
    identity = identity_of_loaded(backbone.model)
    return {
        **asdict(source),
        "attn_implementation": attention_implementation(backbone.model),
        "dtype": dtype_name(backbone.model),
        "weights": identity.revision,
        "identity": identity.as_json(),
        "proof": backbone.proof.summary,
        "hardware": hardware(backbone.device),
        "versions": versions(),
    }
