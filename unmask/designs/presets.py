"""Presets: designs with the names from the papers. Sets: designs that are compared together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from unmask.designs.prompt_files import LIBRARY, members

DEFAULT_DESIGN = "subject-mean-z"
"""The design of a model that was not trained as an embedder, where none is named."""


@dataclass(frozen=True)
class Preset:
    """A design with a short name: its readable name, its meaning, its source, and whether it needs training."""

    design: str
    meaning: str
    source: str
    needs_training: bool = False


PRESETS: dict[str, Preset] = {
    "last": Preset("causal/plain/last", "last token of the text: it has seen all other tokens", "common practice"),
    "mean": Preset("causal/plain/mean", "average over the text's tokens", "common practice"),
    "weighted-mean": Preset(
        "causal/plain/weighted-mean", "weighted average: the k-th token has weight k", "SGPT (arXiv 2202.08904)"
    ),
    "max": Preset("causal/plain/max", "largest value of each dimension over the tokens", "common practice"),
    "eos": Preset(
        "causal/eos/last",
        "an appended end-of-sequence token",
        "RepLLaMA (arXiv 2310.08319); design 1 of Pooling and Attention (arXiv 2409.02727)",
        needs_training=True,
    ),
    "prompteol": Preset(
        "causal/eol/last", "asks for the text in one word; takes the last token", "PromptEOL (arXiv 2307.16645)"
    ),
    "prompteol-z": Preset(
        "causal/eol/last/zscore",
        "PromptEOL with every dimension standardised by reference texts",
        "PromptEOL (arXiv 2307.16645); the fair baseline to MoEE's z-scored vectors",
    ),
    "subject-mean-z": Preset(
        "causal/subject/last+0.3mean/zscore",
        "asks for the subject in one word; the last token and the mean of all tokens, each standardised, added",
        "this package: the default, chosen on development tasks",
    ),
    "echo": Preset("causal/echo/mean", "the text twice; average over the second copy", "Echo (arXiv 2402.15449)"),
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
    "llm2vec-mistral": Preset(
        'bidirectional/"[INST] {instruction}{text} [/INST]"/mean',
        "the published LLM2Vec models of Mistral-Instruct and Llama 2, which put texts into the chat form of their base",
        "LLM2Vec (arXiv 2404.05961), its released models",
        needs_training=True,
    ),
    "llm2vec-llama3": Preset(
        'bidirectional/"<|start_header_id|>user<|end_header_id|>\\n\\n{instruction}{text}<|eot_id|>"/mean',
        "the published LLM2Vec models of Llama-3-Instruct",
        "LLM2Vec (arXiv 2404.05961), its released models",
        needs_training=True,
    ),
    "e5": Preset(
        "causal/instruction-eos/last",
        "instruction, text, end-of-sequence token",
        "E5-Mistral (arXiv 2401.00368)",
        needs_training=True,
    ),
    "gritlm": Preset(
        "bidirectional/gritlm/mean",
        "bidirectional mean over the text after an instruction",
        "GritLM (arXiv 2402.09906)",
        needs_training=True,
    ),
    "nv-embed": Preset(
        "bidirectional/nv-embed/latent-attention",
        "after an instruction: each token attends to trained latents, then the mean",
        "NV-Embed (arXiv 2405.17428)",
        needs_training=True,
    ),
    "llm2vec-gen": Preset(
        'causal/"{instruction}{text}"/compression-tokens',
        "trained tokens after the text, in a frozen model: the vector of what the model would answer",
        "LLM2Vec-Gen (arXiv 2603.10913)",
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
    """Designs that are compared together, each by its preset or readable name. An option for several designs accepts the name of a set.

    standardised: every design `NAME=DESIGN` is standardised, and called `NAME-z`.
    """

    named: tuple[str, ...]
    meaning: str
    source: str
    standardised: bool = False

    @property
    def designs(self) -> tuple[str, ...]:
        """The designs, including the designs of prompt files, which are read only when the set is used."""
        entries = [entry for name in self.named for entry in members(name)]
        return tuple(f"{entry.replace('=', '-z=', 1)}/zscore" if self.standardised else entry for entry in entries)


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
        "hidden-ablation, and routing weights: at the last token, at all tokens, and together with hidden states",
        "MoEE (arXiv 2410.10814), ablation",
    ),
    "prompts": DesignSet(
        (str(LIBRARY),),
        "prompts that ask for one word: what the text is about, means, or is for; some with solved examples",
        "unmask/designs/prompt_library.toml; MetaEOL (arXiv 2402.18458) for kinds of task",
    ),
    "prompts-z": DesignSet(
        (str(LIBRARY),),
        "the same prompts, with every dimension standardised by reference texts",
        "unmask/designs/prompt_library.toml",
        standardised=True,
    ),
}


def design_named(name: str) -> str:
    """The readable name of the design of a preset, or of a prompt of the sets `prompts` and `prompts-z`. Any other name is its own."""
    if name in PRESETS:
        return PRESETS[name].design
    return name if "/" in name else _prompts_of_sets().get(name, name)


@cache
def _prompts_of_sets() -> dict[str, str]:
    members = (member.partition("=") for name in ("prompts", "prompts-z") for member in SETS[name].designs)
    return {label: design for label, _, design in members}
