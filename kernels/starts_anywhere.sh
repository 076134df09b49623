#!/bin/sh
# A binary that wants no CUDA library to start: none among the libraries it names, and it starts. The check is shown to fail
# on a program that is linked to one. usage: starts_anywhere.sh BINARY
set -eu

binary=${1:?usage: starts_anywhere.sh BINARY}

wanted() {
    readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p'
}

cuda_of() {
    wanted "$1" | grep -i -E 'cuda|cublas|curand|nvrtc|nvidia|cudnn'
}

linked=$(mktemp -d)
trap 'rm -rf "$linked"' EXIT
echo 'int cuInit(unsigned flags) { return (int)flags; }' >"$linked/driver.c"
echo 'int cuInit(unsigned); int main(void) { return cuInit(0); }' >"$linked/main.c"
cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$linked/libcuda.so" "$linked/driver.c"
cc -o "$linked/main" "$linked/main.c" -L"$linked" -lcuda
[ "$(cuda_of "$linked/main")" = libcuda.so.1 ] || { echo "the check does not see a linked libcuda" >&2; exit 1; }

[ -n "$(wanted "$binary")" ] || { echo "$binary names no library at all" >&2; exit 1; }
if cuda=$(cuda_of "$binary"); then
    echo "$binary wants $cuda to start" >&2
    exit 1
fi
"$binary" --version
echo "$binary wants $(wanted "$binary" | tr '\n' ' ')and no CUDA"
