"""Designs under the names that the papers gave them, and sets of designs that are compared together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """A named design by its readable name, where it comes from, and whether it needs training."""

    design: str
    meaning: str
    source: str
    needs_training: bool = False


PRESETS: dict[str, Preset] = {
    "last": Preset("causal/plain/last", "last token of the text: the one that has seen all the others", "common practice"),
    "mean": Preset("causal/plain/mean", "average over the text's tokens", "common practice"),
    "weighted-mean": Preset(
        "causal/plain/weighted-mean", "average in which the k-th token weighs k", "SGPT (arXiv 2202.08904)"
    ),
    "max": Preset("causal/plain/max", "largest value of each dimension over the tokens", "common practice"),
    "eos": Preset(
        "causal/eos/last",
        "an appended end-of-sequence token",
        "RepLLaMA (arXiv 2310.08319); design 1 of Pooling and Attention (arXiv 2409.02727)",
        needs_training=True,
    ),
    "prompteol": Preset("causal/eol/last", "the model is about to say the text in one word", "PromptEOL (arXiv 2307.16645)"),
    "prompteol-z": Preset(
        "causal/eol/last/zscore",
        "PromptEOL with every dimension standardised by a reference corpus",
        "PromptEOL (arXiv 2307.16645); the fair baseline to MoEE's z-scored vectors",
    ),
    "echo": Preset("causal/echo/mean", "the text is read twice, the second copy averaged", "Echo (arXiv 2402.15449)"),
    "bidirectional-mean": Preset(
        "bidirectional/plain/mean",
        "every token attends to every token, untrained",
        "LLM2Vec (arXiv 2404.05961), step 1 alone",
    ),
    "llm2vec": Preset(
        "bidirectional/plain/mean",
        "bidirectional attention and mean, after masked next-token prediction and SimCSE",
        "LLM2Vec (arXiv 2404.05961)",
        needs_training=True,
    ),
    "e5": Preset(
        "causal/instruction-eos/last",
        "instruction, text, end-of-sequence token",
        "E5-Mistral (arXiv 2401.00368)",
        needs_training=True,
    ),
    "gritlm": Preset(
        "bidirectional/instruction/mean",
        "bidirectional mean over the text after an instruction",
        "GritLM (arXiv 2402.09906)",
        needs_training=True,
    ),
    "nv-embed": Preset(
        "bidirectional/instruction/latent-attention",
        "trained latents that every token looks up, then their mean, after an instruction",
        "NV-Embed (arXiv 2405.17428)",
        needs_training=True,
    ),
    "routing": Preset(
        "causal/eol/last/routing",
        "routing weights of a mixture of experts at the last token",
        "MoEE (arXiv 2410.10814), RW",
    ),
    "moee-concat": Preset(
        "causal/eol/last/concat",
        "hidden state and routing weights, one after the other",
        "MoEE (arXiv 2410.10814), concat",
    ),
    "moee": Preset(
        "causal/eol/last/sum:1",
        "cosine of hidden states plus cosine of routing weights, as one vector",
        "MoEE (arXiv 2410.10814), sum",
    ),
}


@dataclass(frozen=True)
class DesignSet:
    """Designs that are compared together, by preset or readable name; a set's name stands for all of them wherever several may be given."""

    designs: tuple[str, ...]
    meaning: str
    source: str


_HIDDEN = (
    "causal/eol/last",
    "causal/eol/last@all",
    "causal/eol/mean",
    "causal/eol/mean@all",
    "causal/eol/last/zscore",
    "causal/eol/last/whiten:64",
)
SETS: dict[str, DesignSet] = {
    "hidden-ablation": DesignSet(
        _HIDDEN,
        "hidden states: last token or all tokens, last layer or all layers; standardised and whitened",
        "MoEE (arXiv 2410.10814), ablation; whitening (arXiv 2103.15316)",
    ),
    "moee-ablation": DesignSet(
        (*_HIDDEN, "causal/eol/last/routing", "causal/eol/mean/routing", "moee-concat", "moee"),
        "the same, with routing weights at the last token and at all, and both together",
        "MoEE (arXiv 2410.10814), ablation",
    ),
}
