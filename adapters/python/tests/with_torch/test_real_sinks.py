"""TensorBoard, Weights & Biases and MLflow themselves, off line: what `lockstep.sinks` forwards is read back by their own readers."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2

from lockstep import sinks

# Values that f32 holds exactly: TensorBoard keeps f32.
STEPS = [
    {"step": step, "reward": 0.25 * step, "terms": {"lag": {"mean": -0.5 * step}, "numeric": {"k3": 0.125}}}
    for step in (1, 2, 5)
]
WANTED = {
    "lockstep/lag/mean": {1: -0.5, 2: -1.0, 5: -2.5},
    "actor/ppo_kl": {1: 0.5, 2: 1.0, 5: 2.5},
    "rollout_corr/k3_kl": {1: 0.125, 2: 0.125, 5: 0.125},
    "critic/rewards/mean": {1: 0.25, 2: 0.5, 5: 1.25},
}


def forward(folder: Path, *options: str) -> None:
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in STEPS))
    sinks.main([str(path), *options])


def records(data: bytes) -> Iterator[bytes]:
    """The records of a `.wandb` file: seven bytes of its own, then a log as LevelDB writes it, in blocks of 32 KiB."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
        _, size, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        # Whole, first, middle, last.
        if kind in (1, 4):
            yield record
            record = b""


def of_wandb(folder: Path) -> dict[str, dict[int, float]]:
    """The history of the one run in `folder`, from the file that `wandb sync` uploads."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    found: dict[str, dict[int, float]] = {}
    for data in records(path.read_bytes()):
        history = wandb_internal_pb2.Record.FromString(data).history
        items = {item.key or "/".join(item.nested_key): item.value_json for item in history.item}
        for name in WANTED.keys() & items.keys():
            found.setdefault(name, {})[int(items["_step"])] = json.loads(items[name])
    return found


def test_tensorboard_reads_what_was_forwarded(tmp_path: Path) -> None:
    forward(tmp_path, "--tensorboard", str(tmp_path / "events"))
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    found = {name: {event.step: event.value for event in events.Scalars(name)} for name in WANTED}
    assert found == WANTED


def test_mlflow_reads_what_was_forwarded(tmp_path: Path) -> None:
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    forward(tmp_path, "--mlflow", "pair")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("pair").experiment_id])
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in WANTED}
    assert {name: {metric.step: metric.value for metric in all} for name, all in histories.items()} == WANTED
    assert run.info.status == "FINISHED"


def test_wandb_reads_what_was_forwarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    forward(tmp_path, "--wandb", "pair")
    assert of_wandb(tmp_path) == WANTED
