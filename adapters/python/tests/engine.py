"""A vLLM that answers by a script: token ids alone, by the last id of the prompt. Answers of one prompt have lengths of their own."""

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VOCABULARY, STOP, NEVER = 200, 150, -9999.0


def row(token):
    half = math.log(0.5)
    top = [{"token_id": t, "logprob": p, "rank": r} for t, p, r in [(token, half, 1), (token + 1, half, 2), (0, NEVER, 3)]]
    return {"token_id": token, "logprob": half, "rank": 1, "top_logprobs": top}


class Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, body, kind="application/json", status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        known = {
            "/version": {"version": "0.32.0"},
            "/v1/models": {"data": [{"id": "fake"}]},
            "/weight_info": {"weight_version": "e0.s0"},
            "/health": {},
        }
        self.send(json.dumps(known.get(self.path, {})).encode(), status=200 if self.path in known else 404)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/inference/v1/generate":
            return self.send(b"{}", status=404)
        prompt, params = asked["token_ids"], asked["sampling_params"]
        if any(token >= VOCABULARY for token in prompt):
            return self.send(b'{"error": {"message": "Token id out of vocabulary"}}', status=400)
        length = 1 + (params.get("seed") or 0) % 4
        ids = ([10 + (prompt[0] + at) % 90 for at in range(length)] + [STOP])[: params["max_tokens"]]
        choice = {
            "index": 0,
            "token_ids": ids,
            "finish_reason": "stop" if ids[-1] in (params.get("stop_token_ids") or []) else "length",
            "sampling_mask": None,
            "logprobs": {"content": [row(token) for token in ids]},
            "weight_versions": [{"version": "e0.s0", "start": 0, "end": len(ids)}],
        }
        event = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
        self.send(event.encode(), "text/event-stream")


def start():
    """The server, and its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"
