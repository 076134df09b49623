#!/bin/sh
# Runs the suite against PyPI's `python -m llama_cpp.server`, an OpenAI-shaped server that takes and gives texts and reports raw
# log-probs: the checks that read log-probs must be red. Needs python3, a C++ compiler, and a network once; minutes to build.
# LLAMA_LIBRARY names a directory with a libllama of the same version, which is then not built. Everything made lies in target/real/.
set -eu
cd "$(dirname "$0")/../.."
real=$(pwd)/target/real
venv=$real/texts-venv
version=0.3.36
mkdir -p "$real"

sh tests/setup.sh
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q gguf cmake ninja 'scikit-build-core[pyproject]'
    build=ON
    [ -z "${LLAMA_LIBRARY:-}" ] || build=OFF
    PATH=$venv/bin:$PATH CMAKE_ARGS=-DLLAMA_BUILD=$build "$venv/bin/pip" install -q --no-build-isolation \
        "llama-cpp-python[server]==$version"
fi
[ -z "${LLAMA_LIBRARY:-}" ] || export LLAMA_CPP_LIB_PATH="$LLAMA_LIBRARY"

model=$real/tiny-qwen3.gguf
if [ ! -s "$model" ]; then
    "$venv/bin/python" tests/real/tiny_gguf.py target/test-data/qwen3-tokenizer.json "$model.partial"
    mv "$model.partial" "$model"
fi

port=${LLAMA_PORT:-18932}
url=http://127.0.0.1:$port
"$venv/bin/python" -m llama_cpp.server --model "$model" --port "$port" --n_ctx 512 --n_threads 1 --logits_all true \
    >"$real/texts.log" 2>&1 &
started=$!
trap 'kill "$started" 2>/dev/null || true' EXIT
python3 tests/real/wait.py "$url/v1/models" "$started" || { tail -20 "$real/texts.log" >&2; exit 1; }

cargo build --quiet --workspace
red="distribution.temperature distribution.greedy distribution.support"
report=$real/texts.txt
code=0
# shellcheck disable=SC2086
target/debug/lockstep conformance --sampler "$url" $(printf -- '--check %s ' $red) >"$report" || code=$?
cat "$report"
[ "$code" = 1 ] && [ "$(grep -c '^FAIL ' "$report")" = 3 ]
echo "llama_cpp.server $version: raw log-probs found"
