#!/bin/sh
# What `make check-gpu` says on a machine without a card: builds its program and expects exit code 2 with the reason, and no file.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
if [ -e /proc/driver/nvidia/version ]; then
    echo "this machine has a driver: nothing to show"
    exit 0
fi
sh "$root/kernels/cuda/build.sh" build -p lockstep-kernels --features cuda --example check_gpu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
code=0
said=$(sh "$root/kernels/check_gpu.sh" "${CARGO_TARGET_DIR:-$root/target/cuda-build}/debug/examples/check_gpu" "$folder/gpu.json" 2>&1) || code=$?
echo "$said"
[ "$code" = 2 ] || { echo "exit code $code, wanted 2" >&2; exit 1; }
echo "$said" | grep -q 'libcuda.so.1 is not on this machine' || { echo "the reason is missing" >&2; exit 1; }
[ ! -e "$folder/gpu.json" ] || { echo "it wrote figures of no card" >&2; exit 1; }
