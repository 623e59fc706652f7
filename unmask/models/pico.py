"""The pico model: a tiny decoder with random weights, made in a second, on which every command can be tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask.starter import reference_texts

VOCABULARY = 512


def write_pico(scratch: Path) -> None:
    """Write a Llama of 2 layers and 32 dimensions, and its tokenizer, to scratch/converted; the same on every machine."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(scratch / "converted")
    pico_tokenizer().save_pretrained(scratch / "converted")


def pico_tokenizer() -> Any:
    """A byte-level BPE tokenizer of 512 entries, trained on the reference texts; pad 0, bos 1 (not added), eos 2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(reference_texts(), trainer)
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
