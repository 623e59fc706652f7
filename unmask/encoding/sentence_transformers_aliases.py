"""Names of sentence-transformers that `Embedder` does not have, and their counterparts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unmask.errors import UnmaskError, unknown

INSTEAD: Final = {
    "batch_size": "Batches are bounded by tokens: Embedder.from_pretrained(model, batch_tokens=4096).",
    "convert_to_numpy": "Vectors are NumPy arrays already.",
    "convert_to_tensor": "Convert the result: torch.from_numpy(embedder.encode(texts)).",
    "device": "Choose the device when you load: Embedder.from_pretrained(model, device='cuda').",
    "encode_multi_process": "Threads may share one embedder; for several devices, start one process for each.",
    "get_embedding_dimension": "Use embedder.dim.",
    "get_sentence_embedding_dimension": "Use embedder.dim.",
    "max_seq_length": "Use embedder.max_length; set it when you load: Embedder.from_pretrained(model, max_length=256).",
    "normalize_embeddings": "Use normalize=True.",
    "output_value": "Choose a pooling in the design, such as 'causal/plain/mean'.",
    "prompt": "Use instruction='...'.",
    "prompt_name": "Use instruction_name='...'.",
    "save": "Use embedder.save_pretrained(folder).",
    "semantic_search": "Use embedder.top_k(query_vectors, text_vectors, k).",
    "show_progress_bar": "Use show_progress=True.",
    "to": "Choose the device when you load: Embedder.from_pretrained(model, device='cuda').",
    "truncate_dim": "Use dim=256.",
}


def refuse_unknown(options: Mapping[str, object]) -> None:
    """Raise UnmaskError for an option that encode does not have."""
    for name in options:
        if name in INSTEAD:
            raise UnmaskError(f"encode has no option '{name}'. {INSTEAD[name]}")
        allowed = ("instruction", "instruction_name", "dim", "normalize", "precision", "show_progress", "tally")
        raise unknown("option of encode", name, allowed)
