"""Runs the demo on seeds 1, 2 and 3 and checks what it must show.

usage: python3 tests/demo_seeds.py target/release/lockstep [more demo arguments]
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

RISE = 0.15
SECONDS = 240


def run(binary: str, seed: int, arguments: list[str], out: pathlib.Path) -> tuple[list[dict], float]:
    command = [binary, "demo", "--seed", str(seed), "--out", str(out), *arguments]
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds = time.monotonic() - start
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], seconds


def mean_reward(steps: list[dict]) -> float:
    return sum(step["reward"] for step in steps) / len(steps)


def main() -> int:
    binary, arguments = sys.argv[1], sys.argv[2:]
    print("seed  first 10  last 10    rise  resyncs by ESS  first at  seconds")
    good = True
    with tempfile.TemporaryDirectory() as directory:
        run(binary, 1, ["--steps", "1"], pathlib.Path(directory) / "warm")
        for seed in (1, 2, 3):
            steps, seconds = run(binary, seed, arguments, pathlib.Path(directory) / str(seed))
            first, last = mean_reward(steps[:10]), mean_reward(steps[-10:])
            resyncs = [step["step"] for step in steps if step["resync"] == "ess"]
            at = str(resyncs[0]) if resyncs else "-"
            print(f"{seed:>4}  {first:>8.3f}  {last:>7.3f}  {last - first:>+6.3f}  {len(resyncs):>14}  {at:>8}  {seconds:>7.0f}")
            good &= last - first >= RISE and len(resyncs) > 0 and seconds <= SECONDS
    print(f"rise at least {RISE}, a re-synchronisation by ESS, at most {SECONDS} s: {'yes' if good else 'NO'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
