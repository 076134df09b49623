#!/bin/sh
# On a machine with an NVIDIA card and its driver: parity of every kernel with its definition, under compute-sanitizer too where
# there is one, and the time of every kernel beside its floor. Needs no Rust and no network: it carries the program, which
# `make check-gpu` builds; copy the two files elsewhere and run
#
#   sh check_gpu.sh PROGRAM [FILE, gpu.json by default]
set -eu

program=${1:?usage: check_gpu.sh PROGRAM [FILE]}
file=${2:-gpu.json}

# Says it where there is no card, with the program's exit code.
"$program" parity
if command -v compute-sanitizer >/dev/null 2>&1; then
    for tool in memcheck racecheck initcheck synccheck; do
        compute-sanitizer --tool "$tool" --error-exitcode 1 "$program" parity
    done
else
    echo "no compute-sanitizer here: not run"
fi
"$program" "$file"
