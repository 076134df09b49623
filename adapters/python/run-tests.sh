#!/bin/sh
# The package's tests in a virtual environment under target/. Without arguments torch-free; `torch` and `trl` add what they name.
set -eu
cd "$(dirname "$0")"
kind=${1:-plain}
venv=${LOCKSTEP_VENV:-../../target/python-venv-$kind}

packages="grpcio grpcio-tools protobuf numpy pytest mypy types-protobuf hatchling"
case $kind in
  plain) ;;
  torch) packages="$packages torch" ;;
  trl) packages="$packages torch transformers trl" ;;
  *) echo "run-tests.sh: unknown kind $kind (plain, torch, trl)" >&2; exit 2 ;;
esac
if [ ! -e "$venv/installed" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check $packages
  touch "$venv/installed"
fi
python="$venv/bin/python"

case $kind in
  plain) "$python" -m pytest -q tests && "$python" -m mypy ;;
  torch) "$python" -m pytest -q tests tests/with_torch ;;
  trl) "$python" -m pytest -q tests/with_trl && PYTHONPATH=src "$python" examples/trl_dlc.py ;;
esac
