"""LlamaIndex over an exported embedder: `python examples/llama_index_search.py smollm2`.

Needs `pip install llama-index-embeddings-huggingface`.
"""

import sys
import tempfile

from llama_index.core import Document, VectorStoreIndex
from llama_index.embeddings.huggingface import HuggingFaceEmbedding

from unmask import Embedder

NOTES = [
    "Dentist on Tuesday at nine, bring the insurance card.",
    "Recipe for pancakes: two eggs, flour, milk, a pinch of salt; rest for half an hour.",
    "The wireless password is on the back of the router.",
    "Tomatoes need water every evening while we are away.",
]

with tempfile.TemporaryDirectory() as scratch:
    # or: unmask export smollm2 --to sentence-transformers -o FOLDER
    Embedder.from_pretrained(sys.argv[1] if len(sys.argv) > 1 else "smollm2").save_pretrained(scratch)
    embeddings = HuggingFaceEmbedding(model_name=scratch, max_length=512, trust_remote_code=True)
    index = VectorStoreIndex.from_documents([Document(text=note) for note in NOTES], embed_model=embeddings)
    for found in index.as_retriever(similarity_top_k=4).retrieve("How do I make pancakes?"):
        print(f"{found.score:.2f}  {found.text}")
