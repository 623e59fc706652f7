"""Topics of the reference texts of this package by BERTopic, over an exported embedder: `python examples/bertopic_topics.py smollm2`.

PCA and k-means take the place of UMAP and HDBSCAN, so `pip install --no-deps bertopic` is enough.
"""

import sys
import tempfile

from bertopic import BERTopic
from sentence_transformers import SentenceTransformer
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import CountVectorizer

from unmask import Embedder
from unmask.starter import reference_texts

with tempfile.TemporaryDirectory() as scratch:
    # or: unmask export smollm2 --to sentence-transformers -o FOLDER
    Embedder.from_pretrained(sys.argv[1] if len(sys.argv) > 1 else "smollm2").save_pretrained(scratch)
    topics = BERTopic(
        embedding_model=SentenceTransformer(scratch, trust_remote_code=True),
        umap_model=PCA(n_components=10, random_state=0),
        hdbscan_model=KMeans(n_clusters=6, n_init=10, random_state=0),
        vectorizer_model=CountVectorizer(stop_words="english"),
    )
    topics.fit(reference_texts())
    for number, words in sorted(topics.get_topics().items()):
        print(f"topic {number}: {', '.join(word for word, _ in words[:6])}")
