#!/bin/sh
# The CPU paths of the kernels under AddressSanitizer, on the stable toolchain; then a planted fault, which it must name.
set -eu
cd "$(dirname "$0")/.."
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address
run() {
    cargo test -p lockstep-kernels --target x86_64-unknown-linux-gnu "$@"
}
run --lib --test head --test truncation
if said=$(run --test planted -- --ignored 2>&1); then
    echo "asan.sh: a read past a buffer was not found" >&2
    exit 1
fi
echo "$said" | grep -q 'AddressSanitizer: heap-buffer-overflow' || { echo "$said" >&2; exit 1; }
echo "the planted read past a buffer is found"
