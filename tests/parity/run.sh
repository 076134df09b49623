#!/bin/sh
# Compare the engine with torch on models nobody has seen: fresh weights, fresh ids. Needs python3 and a network once.
# PARITY_VENV names the environment (default target/parity-venv), PARITY_SEED the seed (default: the time).
set -eu
cd "$(dirname "$0")/../.."
venv=${PARITY_VENV:-target/parity-venv}
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q -r tests/parity/requirements.txt
fi
seed=${PARITY_SEED:-$(date +%s)}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
echo "seed $seed"
"$venv/bin/python" tests/parity/make_reference.py "$out" --seed "$seed"
LOCKSTEP_PARITY_DIR=$out cargo test -p lockstep-engine --test parity -- --nocapture
