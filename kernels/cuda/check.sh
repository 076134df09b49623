#!/bin/sh
# Compiles every kernel for sm_90 (cubin) and compute_80 (PTX) and fails on a register spill: as the assembler counts them, and
# as the binary's loads and stores of local memory. Needs neither GPU nor driver.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
out=$root/target/cuda
bin=$(sh "$root/kernels/cuda/toolchain.sh")/bin

mkdir -p "$out"
passed=0
failed=0
for kernel in "$root"/kernels/cuda/*.cu; do
    name=$(basename "$kernel" .cu)
    log=$out/$name.log
    # Contraction would fuse what the definition keeps apart.
    if ! "$bin/nvcc" -std=c++17 -fmad=false -arch=sm_90 -cubin -Xptxas -v -o "$out/$name.cubin" "$kernel" >"$log" 2>&1 ||
        ! "$bin/nvcc" -std=c++17 -fmad=false -arch=compute_80 -ptx -o "$out/$name.ptx" "$kernel" >>"$log" 2>&1; then
        cat "$log"
        failed=$((failed + 1))
        continue
    fi
    spilled=$(sed -n 's/.*stack frame, \([0-9]*\) bytes spill stores.*/\1/p' "$log" | sort -n | tail -1)
    registers=$(sed -n 's/.*Used \([0-9]*\) registers.*/\1/p' "$log" | sort -n | tail -1)
    local=$(PATH="$bin:$PATH" nvdisasm "$out/$name.cubin" | grep -c 'STL\|LDL' || true)
    if [ "${spilled:-x}" = 0 ] && [ "$local" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
    echo "$name: $registers registers, ${spilled:-unknown} bytes of spills, $local accesses to local memory"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
