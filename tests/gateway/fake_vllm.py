"""A vLLM that answers by a script: the routes the gateway probes and its token route, over the real tokenizer.

It speaks ids alone. What it says depends on the last thing it was told, which it reads from the prompt's ids. Every answer is
kept and served at /emitted, so that a test can hold the ids of a conversation against what was really sampled.
"""

import json
import math
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tokenizers import Tokenizer

VOCABULARY = 151_936
END = 151_645
NEVER = -9999.0

tokenizer = Tokenizer.from_file(sys.argv[1])
emitted = []
lock = threading.Lock()


def say(prompt):
    """The ids of the answer to a prompt, without its end."""
    text = tokenizer.decode(prompt, skip_special_tokens=False)
    last = text.rsplit("<|im_start|>", 2)[-2] if text.count("<|im_start|>") > 1 else text
    if "weather in" in last and "<tool_response>" not in last:
        city = last.split("weather in ", 1)[1].split("?", 1)[0]
        call = json.dumps({"name": "weather", "arguments": {"city": city}})
        return tokenizer.encode(f"<tool_call>\n{call}\n</tool_call>").ids
    if "count" in last:
        return tokenizer.encode(" ".join(str(n) for n in range(40))).ids
    # The character's bytes are split over several ids, and the third word has an id no encoder would choose.
    answer = tokenizer.encode("Héllo 🧑‍🚀 wor").ids + tokenizer.encode("ld").ids
    return answer


def row(token):
    half = math.log(0.5)
    other = token + 1 if token + 1 < VOCABULARY else token - 1
    top = [{"token_id": t, "logprob": p, "rank": r} for t, p, r in [(token, half, 1), (other, half, 2), (0 if token else 2, NEVER, 3)]]
    return {"token_id": token, "logprob": half, "rank": 1, "top_logprobs": top}


class Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send_json(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
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
        if self.path == "/emitted":
            with lock:
                self.send_json(emitted)
        elif self.path in known:
            self.send_json(known[self.path])
        else:
            self.send_json({"error": self.path}, 404)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/inference/v1/generate":
            return self.send_json({"error": self.path}, 404)
        prompt, params = asked["token_ids"], asked["sampling_params"]
        if any(token >= VOCABULARY for token in prompt):
            return self.send_json({"error": {"message": "Token id out of vocabulary"}}, 400)
        ids = say(prompt) + [END]
        limit, stops = params["max_tokens"], params.get("stop_token_ids") or []
        ids = ids[:limit]
        reason = "stop" if ids[-1] in stops else "length"
        with lock:
            emitted.append({"prompt": prompt, "ids": ids})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(ids), 2):
            piece = ids[start : start + 2]
            last = start + 2 >= len(ids)
            choice = {
                "index": 0,
                "token_ids": piece,
                "finish_reason": reason if last else None,
                "sampling_mask": None,
                "logprobs": {"content": [row(token) for token in piece]},
            }
            if last:
                choice["weight_versions"] = [{"version": "e0.s0", "start": 0, "end": len(ids)}]
            self.event(json.dumps({"choices": [choice]}))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, text):
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
print(f"listening on 127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
