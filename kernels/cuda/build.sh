#!/bin/sh
# Builds Lockstep with its pair on CUDA into target/cuda-build: the compiler from PyPI, no driver, no installed toolkit. The
# binary starts on any x86-64 Linux; on one with an NVIDIA driver, cuBLAS and cuRAND it runs on the card.
# usage: build.sh [cargo arguments; without any: build --release -p lockstep --features cuda]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
home=$(sh "$here/toolchain.sh")
target=${CARGO_TARGET_DIR:-$root/target/cuda-build}
delayed=$target/delay-load

cd "$root"
cudarc=$(cargo metadata --format-version 1 --features cuda |
    python3 -c 'import json, sys; print(next(p["manifest_path"] for p in json.load(sys.stdin)["packages"] if p["name"] == "cudarc"))')
python3 "$here/delay_load.py" "$delayed" "$(dirname "$cudarc")" "$home/lib/libcudart_static.a"

# PTX for compute capability 8.0, which every later card compiles when it loads.
export CUDA_HOME="$home" CUDA_PATH="$home" NVCC="$home/bin/nvcc" CUDA_COMPUTE_CAP=80 PATH="$home/bin:$PATH"
export LIBRARY_PATH="$delayed" CARGO_TARGET_DIR="$target"
if [ $# = 0 ]; then
    set -- build --release -p lockstep --features cuda
fi
exec cargo "$@"
