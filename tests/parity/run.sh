#!/bin/sh
# Compare the engine with torch on models nobody has seen: fresh weights, fresh ids. `make parity` makes its environment.
# PARITY_VENV names the environment (default target/parity-venv), PARITY_SEED the seed (default: the time).
set -eu
cd "$(dirname "$0")/../.."
venv=${PARITY_VENV:-target/parity-venv}
seed=${PARITY_SEED:-$(date +%s)}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
echo "seed $seed"
"$venv/bin/python" tests/parity/make_reference.py "$out" --seed "$seed"
LOCKSTEP_PARITY_DIR=$out cargo test -p lockstep-engine --test parity -- --nocapture
