"""LangChain over an exported embedder: `python examples/langchain_search.py smollm2` (`pip install langchain-core`).

langchain-huggingface would do the same, but its current versions ask for an older huggingface-hub than transformers 5 does.
"""

import sys
import tempfile
from pathlib import Path

from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from sentence_transformers import SentenceTransformer

from unmask import Embedder

NOTES = [
    "Dentist on Tuesday at nine, bring the insurance card.",
    "Recipe for pancakes: two eggs, flour, milk, a pinch of salt; rest for half an hour.",
    "The wireless password is on the back of the router.",
    "Tomatoes need water every evening while we are away.",
]


class ExportedEmbeddings(Embeddings):
    """An exported folder as LangChain's embeddings."""

    def __init__(self, folder: Path) -> None:
        """Load the folder."""
        self.model = SentenceTransformer(str(folder), trust_remote_code=True)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Vectors of texts."""
        return self.model.encode(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        return self.embed_documents([text])[0]


with tempfile.TemporaryDirectory() as scratch:
    # or: unmask export smollm2 --to sentence-transformers -o FOLDER
    Embedder.from_pretrained(sys.argv[1] if len(sys.argv) > 1 else "smollm2").save_pretrained(scratch)
    store = InMemoryVectorStore(ExportedEmbeddings(Path(scratch)))
    store.add_texts(NOTES)
    for document, score in store.similarity_search_with_score("How do I make pancakes?", k=4):
        print(f"{score:.2f}  {document.page_content}")
