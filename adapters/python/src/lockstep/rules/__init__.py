"""Every correction as a choice of ``(w, c)``, on numpy arrays and torch tensors alike."""

from .aggregate import (
    AREAL,
    MEAN_ONLY,
    TRL,
    VERL,
    Deviation,
    Vcpo,
    advantages,
    coefficients,
    learning_rate_scale,
    leave_one_out,
)
from .centred import ScoreCentring
from .dlc import Dlc, LagMask, PpoClip, WrongOnPurpose, centred_ppo, form_a, form_b, form_e, form_f
from .ess import EssReport, Trigger, clamped_effective_sample_size, effective_sample_size, log_weights, sequence_index
from .fixed import Fixed
from .importance import IcePop, Importance, TrlCorrection
from .kl import exact_kl, k1, k2, k3, unbiased_k3
from .metrics import head_mass, importance_weights, off_policy, shape, term
from .pareto import pareto_k
from .ppo import Cispo, Decoupled, Gspo, M2po, Opsm, Ppo, harmful, m2po_official, mean_log_ratio
from .rejection import VERL_PRESETS, Criterion, Rejection, Times, verl
from .rows import Correction, LagClip, Rows, Rule, TailTerm, Terms

__all__ = [
    "AREAL",
    "MEAN_ONLY",
    "TRL",
    "VERL",
    "VERL_PRESETS",
    "Cispo",
    "Correction",
    "Criterion",
    "Decoupled",
    "Deviation",
    "Dlc",
    "EssReport",
    "Fixed",
    "Gspo",
    "IcePop",
    "Importance",
    "LagClip",
    "LagMask",
    "M2po",
    "Opsm",
    "Ppo",
    "PpoClip",
    "Rejection",
    "Rows",
    "Rule",
    "ScoreCentring",
    "TailTerm",
    "Terms",
    "Times",
    "Trigger",
    "TrlCorrection",
    "Vcpo",
    "WrongOnPurpose",
    "advantages",
    "centred_ppo",
    "clamped_effective_sample_size",
    "coefficients",
    "effective_sample_size",
    "exact_kl",
    "form_a",
    "form_b",
    "form_e",
    "form_f",
    "harmful",
    "head_mass",
    "importance_weights",
    "k1",
    "k2",
    "k3",
    "leave_one_out",
    "learning_rate_scale",
    "log_weights",
    "m2po_official",
    "mean_log_ratio",
    "off_policy",
    "pareto_k",
    "sequence_index",
    "shape",
    "term",
    "unbiased_k3",
    "verl",
]
