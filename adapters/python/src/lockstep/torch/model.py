"""From a batch and a model to the rows a loss takes. Knows Hugging Face's causal models, and anything with a `project`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..batch import Batch
from ..errors import LengthMismatch, NoSnapshots, NotSupported
from ..rules import Dlc
from .loss import LossOutput, loss
from .source import Projection

Project = Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor, "Tensor | None"]]
"""``(model, input_ids [R, L], attention_mask [R, L]) -> (hidden [R, L, H], head weight [V, H], head bias)``."""


def project_causal(model: Any, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Last hidden states and head of a Hugging Face causal model."""
    head = model.get_output_embeddings()
    if head is None:
        raise NotSupported(f"{type(model).__name__} has no output embeddings: give a `project` of your own")
    positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
    decoder = getattr(model, model.base_model_prefix, None) or model.get_decoder()
    hidden = decoder(
        input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, use_cache=False
    ).last_hidden_state
    return hidden, head.weight, getattr(head, "bias", None)


class _Projector(nn.Module):
    """So that parameters can be exchanged for one call."""

    def __init__(self, model: nn.Module, project: Project) -> None:
        super().__init__()
        self.model, self.project = model, project

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        """Hidden states and head, under whatever parameters are in place."""
        return self.project(self.model, input_ids, attention_mask)


def projected(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor,
    parameters: Mapping[str, Tensor] | None = None,
    project: Project = project_causal,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`project` with the model's own parameters, or with others in their place for this call alone."""
    projector = _Projector(model, project)
    if parameters is None:
        out = projector(input_ids, attention_mask)
    else:
        named = {f"model.{name}": value for name, value in parameters.items()}
        out = torch.func.functional_call(projector, named, (input_ids, attention_mask))
    return out[0], out[1], out[2]


def check_no_dropout(model: nn.Module) -> None:
    """A dropout that is on makes p_theta and p_s two draws of noise.

    Raises:
        NotSupported
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout) and module.training and module.p > 0:
            raise NotSupported(
                f"module {name} drops out at {module.p} while it trains: p_theta and p_s would differ by its noise; set it to 0"
            )


def padded(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prompt and answer of each rollout, right-padded: ids, mask, and rollout and place of what predicts each sampled token."""
    sequences, rows, places = [], [], []
    for index in range(len(batch)):
        prompt, answer = batch.rollout(index)
        if len(prompt) == 0:
            raise LengthMismatch(f"the prompt of rollout {batch.ids[index]}", 0, "at least 1")
        sequences.append(np.concatenate([prompt, answer]).astype(np.int64))
        rows.append(np.full(len(answer), index))
        places.append(np.arange(len(prompt) - 1, len(prompt) - 1 + len(answer)))
    width = max(map(len, sequences))
    ids, mask = np.zeros((len(sequences), width), np.int64), np.zeros((len(sequences), width), np.int64)
    for index, sequence in enumerate(sequences):
        ids[index, : len(sequence)] = sequence
        mask[index, : len(sequence)] = 1
    on = lambda values: torch.from_numpy(values).to(device)  # noqa: E731
    return on(ids), on(mask), on(np.concatenate(rows)), on(np.concatenate(places))


def source(
    model: nn.Module, batch: Batch, parameters: Mapping[str, Tensor] | None = None, project: Project = project_causal
) -> Projection:
    """One row of hidden states for each sampled token, and the head."""
    device = next(model.parameters()).device
    ids, mask, rows, places = padded(batch, device)
    hidden, weight, bias = projected(model, ids, mask, parameters, project)
    return Projection(hidden[rows, places], weight, bias)


def batch_loss(
    model: nn.Module,
    batch: Batch,
    rule: Any = None,
    *,
    store: Any = None,
    advantages: Any = None,
    totals: tuple[int, int] | None = None,
    **options: Any,
) -> LossOutput:
    """The loss of one (micro-)batch under the model's present weights.

    ``store`` is a `SnapshotStore`; a batch that came with log p_s needs none. ``totals`` are `Batch.totals` of the whole batch.

    Raises:
        NoSnapshots: a rule that needs p_s, without either.
    """
    rule = Dlc() if rule is None else rule
    check_no_dropout(model)
    log_s, sampler = batch.log_s, None
    if rule.needs_scores and log_s is None:
        if store is None:
            raise NoSnapshots(
                f"{type(rule).__name__} needs p_s, the trainer's distribution at the sampler's weights: keep them in a SnapshotStore"
            )
        if isinstance(rule, Dlc) and rule.tail == "p_s" and batch.behavior.whole_vocabulary.any():
            sampler = store.source(batch)
        else:
            log_s = store.log_s(batch)
    project = options.pop("project", store.project if store is not None else project_causal)
    given = batch.advantages() if advantages is None else advantages
    return loss(
        source(model, batch, project=project),
        batch.behavior,
        torch.as_tensor(np.asarray(given)),
        rule,
        temperature=batch.temperature,
        log_s=log_s,
        sampler=sampler,
        sequence=batch.sequence,
        versions=batch.steps if all(s.stamp.version for s in batch.segments) else None,
        totals=totals,
        **options,
    )
