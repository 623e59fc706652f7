"""The server that one writes first: a route that calls sentence-transformers. `python -m benchmarks._plain_server FOLDER PORT`."""

import sys
from typing import Any

import uvicorn
from fastapi import Body, FastAPI
from sentence_transformers import SentenceTransformer

model, app = SentenceTransformer(sys.argv[1]), FastAPI()


def embed(body: dict[str, Any] = Body()) -> Any:  # noqa: B008
    """The vectors of texts."""
    return model.encode(body["input"], normalize_embeddings=True, show_progress_bar=False).tolist()


app.add_api_route("/embed", embed, methods=["POST"])
app.add_api_route("/health", lambda: "ok")
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), access_log=False)
