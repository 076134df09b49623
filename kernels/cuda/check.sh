#!/bin/sh
# Compiles every kernel for sm_90 (cubin) and compute_80 (PTX), and fails on a register spill. Needs neither GPU nor driver:
# the compiler comes from PyPI (about 400 MB) into target/cuda-toolchain.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
toolchain=$root/target/cuda-toolchain
out=$root/target/cuda
nvcc=$toolchain/lib/python3/nvidia/cu13/bin/nvcc

if [ ! -x "$nvcc" ]; then
    python3 -m venv "$toolchain"
    "$toolchain/bin/pip" install --quiet --disable-pip-version-check \
        nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
        nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
    site=$("$toolchain/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    ln -sfn "$site" "$toolchain/lib/python3"
fi

mkdir -p "$out"
passed=0
failed=0
for kernel in "$root"/kernels/cuda/*.cu; do
    name=$(basename "$kernel" .cu)
    log=$out/$name.log
    # Contraction would fuse what the definition keeps apart.
    if ! "$nvcc" -std=c++17 -fmad=false -arch=sm_90 -cubin -Xptxas -v -o "$out/$name.cubin" "$kernel" >"$log" 2>&1 ||
        ! "$nvcc" -std=c++17 -fmad=false -arch=compute_80 -ptx -o "$out/$name.ptx" "$kernel" >>"$log" 2>&1; then
        cat "$log"
        failed=$((failed + 1))
        continue
    fi
    spilled=$(sed -n 's/.*stack frame, \([0-9]*\) bytes spill stores.*/\1/p' "$log" | sort -n | tail -1)
    registers=$(sed -n 's/.*Used \([0-9]*\) registers.*/\1/p' "$log" | sort -n | tail -1)
    if [ "${spilled:-x}" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
    echo "$name: $registers registers, ${spilled:-unknown} bytes of spills"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
