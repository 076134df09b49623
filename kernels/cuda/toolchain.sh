#!/bin/sh
# Puts the CUDA 13.0 compiler from PyPI (about 450 MB) into target/cuda-toolchain and prints the folder that has its bin/.
# 13.0 because an older driver refuses the PTX of a newer one; nvdisasm has no 13.0 build and reads 13.0 binaries.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
toolchain=${LOCKSTEP_CUDA_TOOLCHAIN:-$root/target/cuda-toolchain}
home=$toolchain/lib/python3/nvidia/cu13

if [ ! -x "$home/bin/nvcc" ] || [ ! -x "$home/bin/nvdisasm" ]; then
    python3 -m venv "$toolchain"
    "$toolchain/bin/pip" install --quiet --disable-pip-version-check \
        nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
        nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-nvdisasm==13.2.78 >&2
    site=$("$toolchain/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    ln -sfn "$site" "$toolchain/lib/python3"
fi
echo "$home"
