#!/bin/sh
# Builds llama.cpp's llama-server from the sources inside PyPI's llama-cpp-python, starts it with a small random Qwen3, and
# runs what needs a real engine; then the same through the gateway, and the conformance suite on it. Needs python3, a C++
# compiler, and a network once.
# LLAMA_SERVER names a server that is built already. Everything made lies in target/real/.
set -eu
cd "$(dirname "$0")/../.."
real=$(pwd)/target/real
venv=$real/venv
version=0.3.36
mkdir -p "$real"

sh tests/setup.sh
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q numpy gguf cmake ninja scikit-build-core
fi

server=${LLAMA_SERVER:-$real/build/bin/llama-server}
if [ ! -x "$server" ]; then
    if [ -n "${LLAMA_SERVER:-}" ]; then
        echo "error: LLAMA_SERVER names $server, which cannot be run" >&2
        exit 2
    fi
    # PATH so that pip finds cmake and ninja without building them.
    PATH=$venv/bin:$PATH "$venv/bin/pip" download -q --no-deps --no-build-isolation \
        --no-binary llama-cpp-python --dest "$real" "llama-cpp-python==$version"
    tar -xzf "$real"/llama_cpp_python-$version.tar.gz -C "$real"
    source=$real/llama_cpp_python-$version/vendor/llama.cpp
    PATH=$venv/bin:$PATH cmake -S "$source" -B "$real/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
        -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF
    PATH=$venv/bin:$PATH cmake --build "$real/build" --target llama-server
fi

model=$real/tiny-qwen3.gguf
if [ ! -s "$model" ]; then
    "$venv/bin/python" tests/real/tiny_gguf.py target/test-data/qwen3-tokenizer.json "$model.partial"
    mv "$model.partial" "$model"
fi

port=${LLAMA_PORT:-18931}
gateway=127.0.0.1:${GATEWAY_PORT:-18933}
url=http://127.0.0.1:$port
for taken in "$port" "${gateway#*:}"; do
    if python3 -c "import socket; socket.create_connection(('127.0.0.1', $taken), 1)" 2>/dev/null; then
        echo "error: port $taken is taken; name other ones in LLAMA_PORT and GATEWAY_PORT" >&2
        exit 2
    fi
done
LD_LIBRARY_PATH=$(dirname "$server")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$server" -m "$model" --host 127.0.0.1 \
    --port "$port" -fa off -ctk f32 -ctv f32 -t 1 --parallel 2 -c 8192 >"$real/llama-server.log" 2>&1 &
started=$!
trap 'kill "$started" "${serving:-$started}" 2>/dev/null || true' EXIT
python3 tests/real/wait.py "$url/health" "$started" || { tail -20 "$real/llama-server.log" >&2; exit 1; }

echo "llama-server of llama-cpp-python $version at $url"
LOCKSTEP_LLAMA_URL=$url cargo test -p lockstep-adapters --test real llama -- --nocapture

cargo build -p lockstep --no-default-features
rm -rf "$real/ledger"
target/debug/lockstep serve --engine "$url" --weight-version e0.s0 --stop-id 151645 --stage fix --out "$real/ledger" \
    --listen "$gateway" >"$real/gateway.log" 2>&1 &
serving=$!
python3 tests/real/wait.py "http://$gateway/health" "$serving" || { tail -20 "$real/gateway.log" >&2; exit 1; }

echo "lockstep serve in front of it at $gateway"
LOCKSTEP_GATEWAY=$gateway cargo test -p lockstep --no-default-features --test real_gateway -- --nocapture
# All that needs a sampler alone, but tokens.vocabulary: it asks for tokens that end inside a character, of which llama.cpp
# reports no probabilities.
checks=
for check in distribution.drawn distribution.filters distribution.defaults distribution.greedy distribution.temperature \
    distribution.seed tokens.ends version.repeat numeric.batch numeric.prefill; do
    checks="$checks --check $check"
done
# shellcheck disable=SC2086 # the options are words
target/debug/lockstep conformance --sampler "http://$gateway" --patience 600 $checks
