#!/bin/sh
# The package's tests, against its wheel in a virtual environment under target/. Without arguments torch-free; `torch` and `trl`
# add what they name (about 3 GB, once).
set -eu
cd "$(dirname "$0")"
kind=${1:-plain}
target=$(cd ../.. && pwd)/target
venv=${LOCKSTEP_VENV:-$target/python-venv-$kind}

packages="pytest mypy types-protobuf grpcio-tools hatchling"
case $kind in
  plain) extra="" ;;
  torch) extra="[torch,probe,sinks]" ;;
  trl) extra="[trl]" ;;
  *) echo "run-tests.sh: unknown kind $kind (plain, torch, trl)" >&2; exit 2 ;;
esac
[ -e "$venv/bin/python" ] || python3 -m venv "$venv"
python="$venv/bin/python"
pip="$python -m pip --quiet --disable-pip-version-check"
[ -e "$venv/installed" ] || $pip install $packages
rm -rf "$target/python-wheel-$kind"
$pip wheel --no-deps --no-build-isolation --wheel-dir "$target/python-wheel-$kind" .
wheel=$(ls "$target/python-wheel-$kind"/*.whl)
[ -e "$venv/installed" ] || $pip install "$wheel$extra"
$pip install --force-reinstall --no-deps "$wheel"
touch "$venv/installed"

test="$python -m pytest -q -o pythonpath=tests -o cache_dir=$target/python-pytest"
case $kind in
  plain) $test tests && "$python" -m mypy --cache-dir "$target/python-mypy" ;;
  torch) $test tests && $test tests/with_torch ;;
  trl)
    engine=${LOCKSTEP_BIN:-$target/release/lockstep}
    [ -x "$engine" ] || { echo "run-tests.sh: no engine at $engine; cargo build --release -p lockstep" >&2; exit 2; }
    $test tests/with_trl
    "$python" examples/trl_dlc.py --engine "$engine"
    "$python" examples/conformance_pair.py "$engine"
    ;;
esac
