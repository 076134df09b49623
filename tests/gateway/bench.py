"""Requests a second and latency of the gateway beside other proxies, in one run on one machine. Compare rows of one run alone.

An nginx with canned answers is the engine: it answers at once. In front of it stand, one after the other, nginx as a plain reverse
proxy, smg (PyPI), Agent Lightning's Python gateway (PyPI agentlightning) where it can be installed, and lockstep without and with
its ledger. wrk asks each for one answer of 16 tokens. smg and Agent Lightning are asked by text, the only way they take; smg captures
nothing, and Agent Lightning is asked outside a rollout, which spares it the storing of spans. Usage: bench.py LOCKSTEP [SECONDS]

bench.py LOCKSTEP memory [REQUESTS] prints the gateway's memory ten times on the way to a million requests.
"""

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

LOCKSTEP = Path(sys.argv[1]).resolve()
MEMORY = sys.argv[2:3] == ["memory"]
REQUESTS = int(sys.argv[3]) if MEMORY and len(sys.argv) > 3 else 1_000_000
SECONDS = int(sys.argv[2]) if len(sys.argv) > 2 and not MEMORY else 8
CONNECTIONS = [1, 64, 1024]
TOKENS = 16
PROMPT = list(range(100, 164))
VENV = Path(os.environ.get("BENCH_VENV", "target/bench-venv"))
work = Path(tempfile.mkdtemp(prefix="lockstep-bench-"))
work.chmod(0o755)  # nginx's workers are somebody else
running = []


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def row(token):
    half = math.log(0.5)
    top = [(token, half, 1), (token + 1, half, 2), (1, -9999.0, 3)]
    top = [{"token_id": t, "logprob": p, "rank": r} for t, p, r in top]
    return {"token_id": token, "logprob": half, "rank": 1, "top_logprobs": top}


def canned():
    ids = [1000 + 3 * n for n in range(TOKENS)]
    choice = {
        "index": 0,
        "token_ids": ids,
        "finish_reason": "length",
        "sampling_mask": None,
        "weight_versions": [{"version": "e0.s0", "start": 0, "end": TOKENS}],
        "logprobs": {"content": [row(token) for token in ids]},
    }
    stream = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
    usage = {"prompt_tokens": len(PROMPT), "completion_tokens": TOKENS, "total_tokens": len(PROMPT) + TOKENS}
    head = {"id": "x", "created": 1, "model": "fake", "usage": usage}
    text = {"index": 0, "text": " word" * TOKENS, "finish_reason": "length", "logprobs": None}
    message = {"role": "assistant", "content": " word" * TOKENS}
    chat = {"index": 0, "message": message, "finish_reason": "length", "logprobs": None}
    return {
        "/inference/v1/generate": ("text/event-stream", stream),
        "/v1/completions": ("application/json", json.dumps({**head, "object": "text_completion", "choices": [text]})),
        "/v1/chat/completions": ("application/json", json.dumps({**head, "object": "chat.completion", "choices": [chat]})),
        "/v1/models": ("application/json", json.dumps({"object": "list", "data": [{"id": "fake", "object": "model"}]})),
        "/version": ("application/json", json.dumps({"version": "0.32.0"})),
        "/weight_info": ("application/json", json.dumps({"weight_version": "e0.s0"})),
        "/health": ("application/json", "{}"),
    }


def nginx(name, body):
    root = work / name
    root.mkdir()
    (root / "nginx.conf").write_text(
        f"""daemon off; worker_processes 1; pid {root}/pid; error_log {root}/error.log crit;
events {{ worker_connections 8192; }}
http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {root}/body; proxy_temp_path {root}/proxy;
fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u; scgi_temp_path {root}/s; {body} }}
"""
    )
    start(["nginx", "-c", str(root / "nginx.conf"), "-p", str(root)], name)


def start(command, name, **options):
    log = open(work / f"{name}.log", "wb")
    running.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **options))
    return running[-1]


def stop(process):
    running.remove(process)
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def up(port, path, body, seconds=90):
    """Waits until a request is answered; gives the reason when it is not."""
    reason, deadline = "nothing", time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=5).read()
            return None
        except Exception as error:
            reason = f"{error} {getattr(error, 'read', lambda: b'')()[:300]!r}"
            time.sleep(0.3)
    return reason


def asking(port, path, body, connections, seconds):
    """The wrk command."""
    script = work / "post.lua"
    script.write_text(f'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\nwrk.body = [==[{json.dumps(body)}]==]\n')
    threads = min(2, connections)
    command = ["wrk", f"-t{threads}", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "--latency", "-s", str(script)]
    return command + [f"http://127.0.0.1:{port}{path}"]


def wrk(port, path, body, connections):
    command = asking(port, path, body, connections, SECONDS)
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    number = lambda pattern: re.search(pattern, out)
    unit = {"us": 1e-3, "ms": 1.0, "s": 1e3}
    milliseconds = lambda found: float(found[1]) * unit[found[2]] if found else float("nan")
    rate = float(number(r"Requests/sec:\s+([\d.]+)")[1])
    bad = number(r"Non-2xx or 3xx responses: (\d+)")
    errors = number(r"Socket errors: (.*)")
    return {
        "rate": rate,
        "p50": milliseconds(number(r"50%\s+([\d.]+)(us|ms|s)")),
        "p99": milliseconds(number(r"99%\s+([\d.]+)(us|ms|s)")),
        "bad": int(bad[1]) if bad else 0,
        "errors": errors[1] if errors else "",
    }


def measure(name, port, path, body):
    reason = up(port, path, body)
    if reason:
        print(f"{name}: does not answer: {reason}; {(work / (name.split()[0] + '.log')).read_bytes()[-400:] if (work / (name.split()[0] + '.log')).exists() else ''}")
        return None
    wrk(port, path, body, 16)
    return {connections: wrk(port, path, body, connections) for connections in CONNECTIONS}


def rss(process):
    """Resident memory in MiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def counters(port):
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    lines = [line.split() for line in page.splitlines() if line.startswith("lockstep_") and "{" not in line]
    return {name: float(value) for name, value in lines}


BODY = {"model": "fake", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 1.0, "n": 1, "return_token_ids": True, "logprobs": 0}


def gateway(name, engine, options):
    port = free_port()
    command = [str(LOCKSTEP), "serve", "--engine", f"http://127.0.0.1:{engine}", "--listen", f"127.0.0.1:{port}"]
    return port, start(command + ["--vocabulary", "151936", "--stop-id", "151645"] + options, name)


def memory(name, engine, options):
    """Resident memory every tenth of the way, after a first tenth that fills pools and caches."""
    port, process = gateway(name, engine, options)
    if reason := up(port, "/v1/completions", BODY):
        sys.exit(f"{name}: does not answer: {reason}")
    asked = start(asking(port, "/v1/completions", BODY, 64, 86_400), "wrk")
    seen = []
    for tenth in range(1, 11):
        while counters(port)["lockstep_requests_total"] < tenth * REQUESTS / 10:
            time.sleep(0.2)
        seen.append(rss(process))
        print(f"{name}: {seen[-1]:7.1f} MiB after {tenth * REQUESTS // 10:>9,} requests", flush=True)
    stop(asked)
    stop(process)
    print(f"{name}: {seen[-1] - seen[0]:+.1f} MiB from the first tenth to the last")


def lockstep(name, engine, options):
    port, process = gateway(name, engine, options)
    rows = measure(name, port, "/v1/completions", BODY)
    if rows:
        before = (counters(port)["lockstep_requests_total"], rss(process))
        streams = wrk(port, "/v1/completions", {**BODY, "stream": True}, 4000)
        wrk(port, "/v1/completions", BODY, 64)
        kept = counters(port)
        print(
            f"{name}: 4,000 streams at once: {streams['rate']:.0f} a second, {streams['bad']} bad {streams['errors']}; "
            f"{before[1]:.0f} MiB after {before[0]:.0f} requests, {rss(process):.0f} MiB after {kept['lockstep_requests_total']:.0f}; "
            f"{kept['lockstep_tokens_total']:.0f} tokens checked; {kept['lockstep_ledger_entries_total']:.0f} ledger entries in "
            f"{kept['lockstep_ledger_syncs_total']:.0f} syncs, {kept['lockstep_ledger_seconds_total']:.1f} s"
        )
    stop(process)
    return rows


def place(number, path, answer):
    """A location that answers POST and GET alike with a file: nginx takes no argument longer than 4 KiB."""
    kind, text = answer
    file = work / f"answer-{number}"
    file.write_text(text)
    return f"location = {path} {{ default_type {kind}; alias {file}; error_page 405 =200 $uri; }}"


def main():
    engine, plain = free_port(), free_port()
    places = "".join(place(number, *answer) for number, answer in enumerate(canned().items()))
    nginx("engine", f"server {{ listen 127.0.0.1:{engine} backlog=4096; {places} }}")
    if MEMORY:
        memory("lockstep", engine, ["--no-ledger"])
        memory("lockstep-ledger", engine, ["--out", str(work / "ledger")])
        return
    nginx(
        "nginx",
        f"upstream engine {{ server 127.0.0.1:{engine}; keepalive 1024; }} server {{ listen 127.0.0.1:{plain} backlog=4096; "
        'location / { proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; } }',
    )
    ids = {"model": "fake", "prompt": PROMPT, "max_tokens": TOKENS}
    text = {"model": "fake", "messages": [{"role": "user", "content": "word " * len(PROMPT)}], "max_tokens": TOKENS}
    table = {"nginx": measure("nginx", plain, "/v1/completions", ids)}
    if (VENV / "bin/smg").exists():
        port = free_port()
        command = [str((VENV / "bin/smg").resolve()), "launch", "--worker-urls", f"http://127.0.0.1:{engine}", "--port", str(port)]
        command += ["--policy", "round_robin", "--log-level", "error", "--prometheus-port", str(free_port())]
        process = start(command, "smg")
        table["smg"] = measure("smg", port, "/v1/chat/completions", text)
        stop(process)
    table["lockstep, no ledger"] = lockstep("lockstep", engine, ["--no-ledger"])
    table["lockstep, ledger"] = lockstep("lockstep-ledger", engine, ["--out", str(work / "ledger")])
    script = Path(__file__).with_name("bench_agentlightning.py")
    python = VENV / "bin/python"
    if python.exists() and subprocess.run([str(python), "-c", "import agentlightning"], capture_output=True).returncode == 0:
        port = free_port()
        weak = {**os.environ, "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
        process = start([str(VENV / "bin/python"), str(script), str(engine), str(port)], "agentlightning", env=weak)
        table["agentlightning"] = measure("agentlightning", port, "/v1/chat/completions", text)
        stop(process)
    else:
        print("agentlightning: not installed in the bench's virtual environment")
    show(table)
    show_ledger(table)


def show_ledger(table):
    """What the ledger's sync adds, by itself."""
    without, with_ledger = table.get("lockstep, no ledger"), table.get("lockstep, ledger")
    for connections in CONNECTIONS if without and with_ledger else []:
        before, after = without[connections], with_ledger[connections]
        print(f"the ledger adds {after['p50'] - before['p50']:+.2f} ms to p50 and {after['p99'] - before['p99']:+.2f} ms to p99 at {connections} "
              f"connections, and leaves {after['rate'] / before['rate']:.2f} of the requests a second")


def show(table):
    nginx_rows = table["nginx"]
    print(f"\n{'':22} {'connections':>11} {'requests/s':>11} {'of nginx':>9} {'p50 ms':>9} {'of nginx':>9} {'p99 ms':>9}  notes")
    for name, rows in table.items():
        for connections, got in (rows or {}).items():
            base = nginx_rows[connections]
            silent = "no answer within 10 s" if not got["rate"] else ""
            notes = " ".join(filter(None, [silent, f"{got['bad']} bad" if got["bad"] else "", got["errors"]]))
            print(f"{name:22} {connections:>11} {got['rate']:>11.0f} {got['rate'] / base['rate']:>9.3f} {got['p50']:>9.2f} "
                  f"{got['p50'] / base['p50']:>9.2f} {got['p99']:>9.2f}  {notes}")


try:
    main()
finally:
    for process in list(running):
        stop(process)
    shutil.rmtree(work, ignore_errors=True)
