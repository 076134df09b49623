#!/bin/sh
# The openai package against a gateway in front of a scripted vLLM. Usage: run.sh path/to/lockstep
# Installs openai and tokenizers from PyPI into target/openai-venv when they are not there; exits with 3 where that is not possible.
set -eu

lockstep=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
venv=${OPENAI_VENV:-$root/target/openai-venv}
data=$root/target/test-data
python=$venv/bin/python

if ! "$python" -c 'import openai, tokenizers' 2>/dev/null; then
    python3 -m venv "$venv" 2>/dev/null || { echo "skipped: python3 has no venv module" >&2; exit 3; }
    "$venv/bin/pip" install --quiet openai tokenizers ||
        { echo "skipped: openai and tokenizers cannot be installed from PyPI" >&2; exit 3; }
fi

work=$(mktemp -d)
engine=
gateway=
finish() {
    [ -z "$gateway" ] || kill "$gateway" 2>/dev/null || true
    [ -z "$engine" ] || kill "$engine" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT

address() {
    # Waits on the pipe for the first line, `listening on ADDRESS`.
    read -r _ _ address <"$1" || { echo "error: $2 did not come up" >&2; cat "$work/errors" >&2; exit 1; }
    echo "http://$address"
}

mkdir "$work/model"
cp "$data/qwen3-tokenizer.json" "$work/model/tokenizer.json"
cp "$data/qwen3-tokenizer_config.json" "$work/model/tokenizer_config.json"
echo '{"vocab_size": 151936, "eos_token_id": 151645}' >"$work/model/config.json"

mkfifo "$work/engine" "$work/gateway"
"$python" "$root/tests/gateway/fake_vllm.py" "$work/model/tokenizer.json" >"$work/engine" 2>"$work/errors" &
engine=$!
engine_url=$(address "$work/engine" "the scripted vLLM")
"$lockstep" serve --engine "$engine_url" --listen 127.0.0.1:0 --model "$work/model" --tool-parser qwen3 \
    --out "$work/ledger" >"$work/gateway" 2>"$work/errors" &
gateway=$!
gateway_url=$(address "$work/gateway" "the gateway")
"$python" "$root/tests/gateway/check_openai.py" "$gateway_url" "$engine_url"

# Ctrl-C ends it cleanly.
kill -INT "$gateway"
wait "$gateway" || { echo "error: the gateway ended with $?" >&2; cat "$work/errors" >&2; exit 1; }
gateway=
