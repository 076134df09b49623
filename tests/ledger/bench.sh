#!/bin/sh
# The ledger's appends with sync beside fio's, same block size, same sync pattern, same disk, in turns; its recovery beside
# plainly reading the file; the memory of a writer of 1,000,000 rollouts. Needs fio: apt-get install fio.
#
#     sh tests/ledger/bench.sh ledger_speed [DIR]
set -eu

speed=$1
work=$(mktemp -d "${2:-target}/ledger-bench.XXXXXX")
trap 'rm -rf "$work"' EXIT
if ! command -v fio >/dev/null; then
    echo "error: fio is missing; apt-get install fio" >&2
    exit 2
fi

python3 - "$speed" "$work" <<'PY'
import json, pathlib, shutil, statistics, subprocess, sys

speed, work = sys.argv[1], pathlib.Path(sys.argv[2])


def ours(*arguments):
    return json.loads(subprocess.run([speed, *map(str, arguments)], check=True, capture_output=True).stdout)


def fio(block, total):
    file = work / "fio"
    done = subprocess.run(
        ["fio", "--name=append", f"--filename={file}", "--rw=write", f"--bs={block}", f"--size={total}", "--fdatasync=1",
         "--ioengine=sync", "--fallocate=none", "--output-format=json"],
        check=True, capture_output=True)
    file.unlink()
    return json.loads(done.stdout)["jobs"][0]["write"]["bw_bytes"]


for block, total in [(16 << 10, 8 << 20), (64 << 10, 32 << 20), (256 << 10, 64 << 20), (1 << 20, 128 << 20)]:
    rates = {"ledger": [], "fio": []}
    for _ in range(3):
        directory = work / "ledger"
        done = ours("append", directory, block, total)
        rates["ledger"].append(done["bytes_a_second"])
        # fio syncs blocks of the size that the ledger's really have.
        rates["fio"].append(fio(done["bytes"] // done["syncs"], total))
        shutil.rmtree(directory)
    ledger, beside = (statistics.median(rates[name]) / 1e6 for name in ("ledger", "fio"))
    print(f"append with sync, {block >> 10:>5} KiB a sync: ledger {ledger:8.1f} MB/s, fio {beside:8.1f} MB/s, "
          f"ratio {ledger / beside:.2f}", flush=True)

ours("append", work / "ledger", 32 << 20, 512 << 20)
done = ours("recover", work / "ledger")
print(f"recovery: {done['recovered'] / 1e6:.0f} MB/s, plain reading {done['plain'] / 1e6:.0f} MB/s, ratio {done['ratio']:.2f}",
      flush=True)
shutil.rmtree(work / "ledger")
done = ours("million", work / "million")
print(f"1,000,000 rollouts in {done['seconds']:.1f} s: at most {done['peak_kb'] / 1024:.1f} MiB of memory, "
      f"{done['peak_kb_after_100000'] / 1024:.1f} MiB after 100,000; opened in {done['open_seconds']:.2f} s, "
      f"{done['peak_kb_after_open'] / 1024:.1f} MiB")
PY
