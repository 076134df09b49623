"""Forwards metrics to TensorBoard, Weights & Biases and MLflow: ours, and beside them the names verl and TRL users look for.

    python -m lockstep.sinks runs/demo-1/metrics.jsonl --tensorboard DIR [--wandb PROJECT] [--mlflow EXPERIMENT]

Values are raw: before any clip, lag and numeric apart.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .errors import LockstepError, NotANumber, NotSupported, WireError

ALIASES: dict[str, tuple[tuple[str, float], ...]] = {
    "numeric/mean": (("rollout_corr/kl", -1.0),),
    "numeric/mean_abs": (("sampling/sampling_logp_difference/mean", 1.0),),
    "numeric/k3": (("rollout_corr/k3_kl", 1.0),),
    "numeric/chi2": (("rollout_corr/chi2_token", 1.0),),
    "numeric/max_abs": (("sampling/sampling_logp_difference/max", 1.0),),
    "lag/mean": (("actor/ppo_kl", -1.0),),
    "clipped_share": (("actor/pg_clipfrac", 1.0), ("clip_ratio/region_mean", 1.0)),
    "gradient_norm": (("actor/grad_norm", 1.0), ("grad_norm", 1.0)),
    "loss": (("actor/pg_loss", 1.0),),
    "reward": (("critic/rewards/mean", 1.0), ("reward", 1.0)),
}
"""Ours, and the names of the same value elsewhere, with their sign."""


class Sink(Protocol):
    """Takes the scalars of one step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Forwards them."""
        ...

    def close(self) -> None:
        """Flushes."""
        ...


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers of a nested record under names with slashes; what is no number is left out.

    Raises:
        NotANumber: a value that is not finite.
    """
    out: dict[str, float] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            out.update(flat(value, f"{path}/"))
        elif isinstance(value, (int, float)):
            if not math.isfinite(value):
                raise NotANumber(f"metric {path} is {value}")
            out[path] = float(value)
    return out


def with_aliases(metrics: Mapping[str, float]) -> dict[str, float]:
    """Ours under ``lockstep/``, and the aliases beside them."""
    out = {f"lockstep/{name}": value for name, value in metrics.items()}
    for name, value in metrics.items():
        out.update({alias: sign * value for alias, sign in ALIASES.get(name, ())})
    return out


def _load(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotSupported(f"{package} is not installed: pip install {package}") from error


class TensorBoard:
    """Event files in a directory."""

    def __init__(self, directory: str) -> None:
        self._writer = _load("torch.utils.tensorboard", "tensorboard").SummaryWriter(directory)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One scalar a name."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flushes."""
        self._writer.close()


class Wandb:
    """A run of Weights & Biases; its key is taken from the environment."""

    def __init__(self, project: str, **options: Any) -> None:
        self._run = _load("wandb", "wandb").init(project=project, **options)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One call a step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()


class Mlflow:
    """A run of MLflow."""

    def __init__(self, experiment: str) -> None:
        self._mlflow = _load("mlflow", "mlflow")
        self._mlflow.set_experiment(experiment)
        self._mlflow.start_run()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One call a step."""
        self._mlflow.log_metrics(dict(metrics), step=step)

    def close(self) -> None:
        """Ends the run."""
        self._mlflow.end_run()


def forward(
    records: Iterable[Mapping[str, Any]],
    sinks: Sequence[Sink],
    *,
    step: Callable[[Mapping[str, Any]], int] = lambda record: int(record["step"]),
) -> int:
    """Sends each record to each sink; returns how many."""
    count = 0
    for record in records:
        # The server keeps both terms under one key of its records, and the aliases of some under another.
        metrics = with_aliases(
            {
                name.removeprefix("terms/"): value
                for name, value in flat(record).items()
                if name != "step" and not name.startswith("aliases/")
            }
        )
        for sink in sinks:
            sink.log(step(record), metrics)
        count += 1
    return count


def records_of(path: Path) -> Iterator[Mapping[str, Any]]:
    """The records of a `metrics.jsonl`.

    Raises:
        WireError: a file that cannot be read, or a line that is no record of a step, by its number.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WireError(f"{path}: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise WireError(f"{path}, line {number} of {len(lines)}: {error}") from error
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            raise WireError(f"{path}, line {number} of {len(lines)}: a record without a step; metrics.jsonl is what is forwarded")
        yield record


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m lockstep.sinks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jsonl", type=Path, help="metrics.jsonl of a run")
    parser.add_argument("--tensorboard", metavar="DIRECTORY")
    parser.add_argument("--wandb", metavar="PROJECT")
    parser.add_argument("--mlflow", metavar="EXPERIMENT")
    args = parser.parse_args(arguments)
    made: list[tuple[str | None, Callable[[str], Sink]]] = [
        (args.tensorboard, TensorBoard),
        (args.wandb, Wandb),
        (args.mlflow, Mlflow),
    ]
    sinks = [make(name) for name, make in made if name is not None]
    if not sinks:
        parser.error("nothing to forward to: give --tensorboard, --wandb or --mlflow")
    try:
        count = forward(records_of(args.jsonl), sinks)
    finally:
        for sink in sinks:
            sink.close()
    print(f"{count} steps forwarded to {len(sinks)} sinks")


if __name__ == "__main__":
    try:
        main()
    except LockstepError as error:
        raise SystemExit(f"lockstep.sinks: {error}") from error
