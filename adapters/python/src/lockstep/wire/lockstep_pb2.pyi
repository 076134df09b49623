from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Filter(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FILTER_UNSPECIFIED: _ClassVar[Filter]
    FILTER_TEMPERATURE: _ClassVar[Filter]
    FILTER_TOP_K: _ClassVar[Filter]
    FILTER_TOP_P: _ClassVar[Filter]
    FILTER_MIN_P: _ClassVar[Filter]

class TieRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIE_RULE_UNSPECIFIED: _ClassVar[TieRule]
    TIE_RULE_LOWER_ID: _ClassVar[TieRule]
    TIE_RULE_KEEP_ALL: _ClassVar[TieRule]
    TIE_RULE_ARBITRARY: _ClassVar[TieRule]

class LogProbMeaning(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOG_PROB_MEANING_UNSPECIFIED: _ClassVar[LogProbMeaning]
    LOG_PROB_MEANING_DRAWN: _ClassVar[LogProbMeaning]
    LOG_PROB_MEANING_TEMPERED: _ClassVar[LogProbMeaning]
    LOG_PROB_MEANING_RAW: _ClassVar[LogProbMeaning]

class KvHistory(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KV_HISTORY_UNSPECIFIED: _ClassVar[KvHistory]
    KV_HISTORY_FRESH: _ClassVar[KvHistory]
    KV_HISTORY_RECOMPUTED: _ClassVar[KvHistory]
    KV_HISTORY_STALE: _ClassVar[KvHistory]
    KV_HISTORY_AMBIGUOUS: _ClassVar[KvHistory]

class TailModel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TAIL_MODEL_UNSPECIFIED: _ClassVar[TailModel]
    TAIL_MODEL_SAMPLER_WEIGHTS: _ClassVar[TailModel]
    TAIL_MODEL_COLLAPSED: _ClassVar[TailModel]

class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_UNSPECIFIED: _ClassVar[Stage]
    STAGE_OBSERVE: _ClassVar[Stage]
    STAGE_FIX: _ClassVar[Stage]
    STAGE_DLC: _ClassVar[Stage]
FILTER_UNSPECIFIED: Filter
FILTER_TEMPERATURE: Filter
FILTER_TOP_K: Filter
FILTER_TOP_P: Filter
FILTER_MIN_P: Filter
TIE_RULE_UNSPECIFIED: TieRule
TIE_RULE_LOWER_ID: TieRule
TIE_RULE_KEEP_ALL: TieRule
TIE_RULE_ARBITRARY: TieRule
LOG_PROB_MEANING_UNSPECIFIED: LogProbMeaning
LOG_PROB_MEANING_DRAWN: LogProbMeaning
LOG_PROB_MEANING_TEMPERED: LogProbMeaning
LOG_PROB_MEANING_RAW: LogProbMeaning
KV_HISTORY_UNSPECIFIED: KvHistory
KV_HISTORY_FRESH: KvHistory
KV_HISTORY_RECOMPUTED: KvHistory
KV_HISTORY_STALE: KvHistory
KV_HISTORY_AMBIGUOUS: KvHistory
TAIL_MODEL_UNSPECIFIED: TailModel
TAIL_MODEL_SAMPLER_WEIGHTS: TailModel
TAIL_MODEL_COLLAPSED: TailModel
STAGE_UNSPECIFIED: Stage
STAGE_OBSERVE: Stage
STAGE_FIX: Stage
STAGE_DLC: Stage

class WeightVersion(_message.Message):
    __slots__ = ("epoch", "step")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Stamp(_message.Message):
    __slots__ = ("version", "label", "behavioural", "digest")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    BEHAVIOURAL_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    version: WeightVersion
    label: str
    behavioural: Behavioural
    digest: bytes
    def __init__(self, version: _Optional[_Union[WeightVersion, _Mapping]] = ..., label: _Optional[str] = ..., behavioural: _Optional[_Union[Behavioural, _Mapping]] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Behavioural(_message.Message):
    __slots__ = ("repeat_noise", "change")
    REPEAT_NOISE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    repeat_noise: float
    change: float
    def __init__(self, repeat_noise: _Optional[float] = ..., change: _Optional[float] = ...) -> None: ...

class RolloutId(_message.Message):
    __slots__ = ("plan", "index")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    plan: int
    index: int
    def __init__(self, plan: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "stop", "max_new_tokens")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    stop: bytes
    max_new_tokens: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., stop: _Optional[bytes] = ..., max_new_tokens: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("id", "group", "prompt", "params")
    ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    id: RolloutId
    group: int
    prompt: bytes
    params: SamplingParams
    def __init__(self, id: _Optional[_Union[RolloutId, _Mapping]] = ..., group: _Optional[int] = ..., prompt: _Optional[bytes] = ..., params: _Optional[_Union[SamplingParams, _Mapping]] = ...) -> None: ...

class SamplerProfile(_message.Message):
    __slots__ = ("engine", "version", "filters", "ties", "log_probs", "weights_dtype", "activations_dtype", "kv_cache_dtype", "head_dtype")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    TIES_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DTYPE_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    HEAD_DTYPE_FIELD_NUMBER: _ClassVar[int]
    engine: str
    version: str
    filters: _containers.RepeatedScalarFieldContainer[Filter]
    ties: TieRule
    log_probs: LogProbMeaning
    weights_dtype: str
    activations_dtype: str
    kv_cache_dtype: str
    head_dtype: str
    def __init__(self, engine: _Optional[str] = ..., version: _Optional[str] = ..., filters: _Optional[_Iterable[_Union[Filter, str]]] = ..., ties: _Optional[_Union[TieRule, str]] = ..., log_probs: _Optional[_Union[LogProbMeaning, str]] = ..., weights_dtype: _Optional[str] = ..., activations_dtype: _Optional[str] = ..., kv_cache_dtype: _Optional[str] = ..., head_dtype: _Optional[str] = ...) -> None: ...

class Behavior(_message.Message):
    __slots__ = ("tokens", "offsets", "ids", "log_q", "rest")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LOG_Q_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    offsets: bytes
    ids: bytes
    log_q: bytes
    rest: Rest
    def __init__(self, tokens: _Optional[bytes] = ..., offsets: _Optional[bytes] = ..., ids: _Optional[bytes] = ..., log_q: _Optional[bytes] = ..., rest: _Optional[_Union[Rest, _Mapping]] = ...) -> None: ...

class Rest(_message.Message):
    __slots__ = ("vocabulary", "log_q_sampled", "log_rest")
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    LOG_Q_SAMPLED_FIELD_NUMBER: _ClassVar[int]
    LOG_REST_FIELD_NUMBER: _ClassVar[int]
    vocabulary: bytes
    log_q_sampled: bytes
    log_rest: bytes
    def __init__(self, vocabulary: _Optional[bytes] = ..., log_q_sampled: _Optional[bytes] = ..., log_rest: _Optional[bytes] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("stop", "length", "stop_text")
    STOP_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    STOP_TEXT_FIELD_NUMBER: _ClassVar[int]
    stop: int
    length: bool
    stop_text: bool
    def __init__(self, stop: _Optional[int] = ..., length: _Optional[bool] = ..., stop_text: _Optional[bool] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("rollout", "start", "behavior", "stamp", "kv", "profile", "finish")
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    BEHAVIOR_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    rollout: RolloutId
    start: int
    behavior: Behavior
    stamp: Stamp
    kv: KvHistory
    profile: int
    finish: Finish
    def __init__(self, rollout: _Optional[_Union[RolloutId, _Mapping]] = ..., start: _Optional[int] = ..., behavior: _Optional[_Union[Behavior, _Mapping]] = ..., stamp: _Optional[_Union[Stamp, _Mapping]] = ..., kv: _Optional[_Union[KvHistory, str]] = ..., profile: _Optional[int] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SamplerDescription(_message.Message):
    __slots__ = ("profile", "vocabulary", "resumes", "digest")
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    profile: SamplerProfile
    vocabulary: int
    resumes: bool
    digest: bool
    def __init__(self, profile: _Optional[_Union[SamplerProfile, _Mapping]] = ..., vocabulary: _Optional[int] = ..., resumes: _Optional[bool] = ..., digest: _Optional[bool] = ...) -> None: ...

class SampleRequests(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[SampleRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[SampleRequest, _Mapping]]] = ...) -> None: ...

class SampleRequest(_message.Message):
    __slots__ = ("request", "resumed")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    request: Request
    resumed: bytes
    def __init__(self, request: _Optional[_Union[Request, _Mapping]] = ..., resumed: _Optional[bytes] = ...) -> None: ...

class Deltas(_message.Message):
    __slots__ = ("deltas",)
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[Delta]
    def __init__(self, deltas: _Optional[_Iterable[_Union[Delta, _Mapping]]] = ...) -> None: ...

class RolloutIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedCompositeFieldContainer[RolloutId]
    def __init__(self, ids: _Optional[_Iterable[_Union[RolloutId, _Mapping]]] = ...) -> None: ...

class PublishedWeights(_message.Message):
    __slots__ = ("version", "path", "digest")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    version: WeightVersion
    path: str
    digest: bytes
    def __init__(self, version: _Optional[_Union[WeightVersion, _Mapping]] = ..., path: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class TrainerDescription(_message.Message):
    __slots__ = ("version", "live", "snapshots")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    version: WeightVersion
    live: _containers.RepeatedCompositeFieldContainer[WeightVersion]
    snapshots: bool
    def __init__(self, version: _Optional[_Union[WeightVersion, _Mapping]] = ..., live: _Optional[_Iterable[_Union[WeightVersion, _Mapping]]] = ..., snapshots: _Optional[bool] = ...) -> None: ...

class WeightVersions(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[WeightVersion]
    def __init__(self, versions: _Optional[_Iterable[_Union[WeightVersion, _Mapping]]] = ...) -> None: ...

class BatchChunk(_message.Message):
    __slots__ = ("pieces",)
    PIECES_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedCompositeFieldContainer[BatchPiece]
    def __init__(self, pieces: _Optional[_Iterable[_Union[BatchPiece, _Mapping]]] = ...) -> None: ...

class BatchPiece(_message.Message):
    __slots__ = ("header", "request", "delta", "scores", "reward")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    header: BatchHeader
    request: Request
    delta: Delta
    scores: Scores
    reward: float
    def __init__(self, header: _Optional[_Union[BatchHeader, _Mapping]] = ..., request: _Optional[_Union[Request, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., scores: _Optional[_Union[Scores, _Mapping]] = ..., reward: _Optional[float] = ...) -> None: ...

class BatchHeader(_message.Message):
    __slots__ = ("plan", "rollouts", "profiles", "version", "options")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    plan: int
    rollouts: int
    profiles: _containers.RepeatedCompositeFieldContainer[SamplerProfile]
    version: WeightVersion
    options: StepOptions
    def __init__(self, plan: _Optional[int] = ..., rollouts: _Optional[int] = ..., profiles: _Optional[_Iterable[_Union[SamplerProfile, _Mapping]]] = ..., version: _Optional[_Union[WeightVersion, _Mapping]] = ..., options: _Optional[_Union[StepOptions, _Mapping]] = ...) -> None: ...

class StepOptions(_message.Message):
    __slots__ = ("rule", "horizon")
    RULE_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    rule: Rule
    horizon: int
    def __init__(self, rule: _Optional[_Union[Rule, _Mapping]] = ..., horizon: _Optional[int] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("uncorrected", "dlc", "method")
    UNCORRECTED_FIELD_NUMBER: _ClassVar[int]
    DLC_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    uncorrected: Empty
    dlc: Dlc
    method: str
    def __init__(self, uncorrected: _Optional[_Union[Empty, _Mapping]] = ..., dlc: _Optional[_Union[Dlc, _Mapping]] = ..., method: _Optional[str] = ...) -> None: ...

class Dlc(_message.Message):
    __slots__ = ("clip_low", "clip_high", "tail")
    CLIP_LOW_FIELD_NUMBER: _ClassVar[int]
    CLIP_HIGH_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    clip_low: float
    clip_high: float
    tail: TailModel
    def __init__(self, clip_low: _Optional[float] = ..., clip_high: _Optional[float] = ..., tail: _Optional[_Union[TailModel, str]] = ...) -> None: ...

class Scores(_message.Message):
    __slots__ = ("rollout", "segment", "log_p", "log_p_sampled", "log_rest")
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    LOG_P_FIELD_NUMBER: _ClassVar[int]
    LOG_P_SAMPLED_FIELD_NUMBER: _ClassVar[int]
    LOG_REST_FIELD_NUMBER: _ClassVar[int]
    rollout: int
    segment: int
    log_p: bytes
    log_p_sampled: bytes
    log_rest: bytes
    def __init__(self, rollout: _Optional[int] = ..., segment: _Optional[int] = ..., log_p: _Optional[bytes] = ..., log_p_sampled: _Optional[bytes] = ..., log_rest: _Optional[bytes] = ...) -> None: ...

class ScoreChunk(_message.Message):
    __slots__ = ("scores",)
    SCORES_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedCompositeFieldContainer[Scores]
    def __init__(self, scores: _Optional[_Iterable[_Union[Scores, _Mapping]]] = ...) -> None: ...

class Term(_message.Message):
    __slots__ = ("mean", "k3", "max_abs", "kl", "k2", "chi2", "mean_abs")
    MEAN_FIELD_NUMBER: _ClassVar[int]
    K3_FIELD_NUMBER: _ClassVar[int]
    MAX_ABS_FIELD_NUMBER: _ClassVar[int]
    KL_FIELD_NUMBER: _ClassVar[int]
    K2_FIELD_NUMBER: _ClassVar[int]
    CHI2_FIELD_NUMBER: _ClassVar[int]
    MEAN_ABS_FIELD_NUMBER: _ClassVar[int]
    mean: float
    k3: float
    max_abs: float
    kl: float
    k2: float
    chi2: float
    mean_abs: float
    def __init__(self, mean: _Optional[float] = ..., k3: _Optional[float] = ..., max_abs: _Optional[float] = ..., kl: _Optional[float] = ..., k2: _Optional[float] = ..., chi2: _Optional[float] = ..., mean_abs: _Optional[float] = ...) -> None: ...

class RatioShape(_message.Message):
    __slots__ = ("lag_variance", "lag_pareto_k", "numeric_pareto_k")
    LAG_VARIANCE_FIELD_NUMBER: _ClassVar[int]
    LAG_PARETO_K_FIELD_NUMBER: _ClassVar[int]
    NUMERIC_PARETO_K_FIELD_NUMBER: _ClassVar[int]
    lag_variance: float
    lag_pareto_k: float
    numeric_pareto_k: float
    def __init__(self, lag_variance: _Optional[float] = ..., lag_pareto_k: _Optional[float] = ..., numeric_pareto_k: _Optional[float] = ...) -> None: ...

class Ess(_message.Message):
    __slots__ = ("drawn_at", "token", "sequence", "horizon", "horizon_tokens", "sequences", "tokens")
    DRAWN_AT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    HORIZON_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    drawn_at: WeightVersion
    token: float
    sequence: float
    horizon: float
    horizon_tokens: int
    sequences: int
    tokens: int
    def __init__(self, drawn_at: _Optional[_Union[WeightVersion, _Mapping]] = ..., token: _Optional[float] = ..., sequence: _Optional[float] = ..., horizon: _Optional[float] = ..., horizon_tokens: _Optional[int] = ..., sequences: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class StepReport(_message.Message):
    __slots__ = ("before", "after", "loss", "gradient_norm", "lag", "numeric", "clipped_share", "support_size", "tokens", "ess", "full", "head_mass", "shape")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    NUMERIC_FIELD_NUMBER: _ClassVar[int]
    CLIPPED_SHARE_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ESS_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    HEAD_MASS_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    before: WeightVersion
    after: WeightVersion
    loss: float
    gradient_norm: float
    lag: Term
    numeric: Term
    clipped_share: float
    support_size: float
    tokens: int
    ess: _containers.RepeatedCompositeFieldContainer[Ess]
    full: Term
    head_mass: float
    shape: RatioShape
    def __init__(self, before: _Optional[_Union[WeightVersion, _Mapping]] = ..., after: _Optional[_Union[WeightVersion, _Mapping]] = ..., loss: _Optional[float] = ..., gradient_norm: _Optional[float] = ..., lag: _Optional[_Union[Term, _Mapping]] = ..., numeric: _Optional[_Union[Term, _Mapping]] = ..., clipped_share: _Optional[float] = ..., support_size: _Optional[float] = ..., tokens: _Optional[int] = ..., ess: _Optional[_Iterable[_Union[Ess, _Mapping]]] = ..., full: _Optional[_Union[Term, _Mapping]] = ..., head_mass: _Optional[float] = ..., shape: _Optional[_Union[RatioShape, _Mapping]] = ...) -> None: ...

class ProbeLoss(_message.Message):
    __slots__ = ("tokens", "position", "support", "w", "c", "temperature")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_FIELD_NUMBER: _ClassVar[int]
    W_FIELD_NUMBER: _ClassVar[int]
    C_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    position: int
    support: bytes
    w: float
    c: _containers.RepeatedScalarFieldContainer[float]
    temperature: float
    def __init__(self, tokens: _Optional[bytes] = ..., position: _Optional[int] = ..., support: _Optional[bytes] = ..., w: _Optional[float] = ..., c: _Optional[_Iterable[float]] = ..., temperature: _Optional[float] = ...) -> None: ...

class ProbeGradient(_message.Message):
    __slots__ = ("gradient",)
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    gradient: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, gradient: _Optional[_Iterable[float]] = ...) -> None: ...

class MiddlewareDescription(_message.Message):
    __slots__ = ("lockstep_version", "stage", "sampler", "stamp", "pull", "lease_seconds")
    LOCKSTEP_VERSION_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    lockstep_version: str
    stage: Stage
    sampler: SamplerDescription
    stamp: Stamp
    pull: bool
    lease_seconds: int
    def __init__(self, lockstep_version: _Optional[str] = ..., stage: _Optional[_Union[Stage, str]] = ..., sampler: _Optional[_Union[SamplerDescription, _Mapping]] = ..., stamp: _Optional[_Union[Stamp, _Mapping]] = ..., pull: _Optional[bool] = ..., lease_seconds: _Optional[int] = ...) -> None: ...

class PlanId(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: int
    def __init__(self, plan: _Optional[int] = ...) -> None: ...

class OpenPlanRequest(_message.Message):
    __slots__ = ("groups", "answers", "plan")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    groups: int
    answers: int
    plan: int
    def __init__(self, groups: _Optional[int] = ..., answers: _Optional[int] = ..., plan: _Optional[int] = ...) -> None: ...

class OpenedPlan(_message.Message):
    __slots__ = ("plan", "rollouts")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    plan: int
    rollouts: _containers.RepeatedCompositeFieldContainer[RolloutId]
    def __init__(self, plan: _Optional[int] = ..., rollouts: _Optional[_Iterable[_Union[RolloutId, _Mapping]]] = ...) -> None: ...

class ConsumerId(_message.Message):
    __slots__ = ("consumer", "rank", "ranks")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    rank: int
    ranks: int
    def __init__(self, consumer: _Optional[str] = ..., rank: _Optional[int] = ..., ranks: _Optional[int] = ...) -> None: ...

class NextBatchRequest(_message.Message):
    __slots__ = ("consumer",)
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    consumer: ConsumerId
    def __init__(self, consumer: _Optional[_Union[ConsumerId, _Mapping]] = ...) -> None: ...

class Rewards(_message.Message):
    __slots__ = ("rewards",)
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    rewards: _containers.RepeatedCompositeFieldContainer[RolloutReward]
    def __init__(self, rewards: _Optional[_Iterable[_Union[RolloutReward, _Mapping]]] = ...) -> None: ...

class RolloutReward(_message.Message):
    __slots__ = ("rollout", "reward", "failed")
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    rollout: RolloutId
    reward: float
    failed: str
    def __init__(self, rollout: _Optional[_Union[RolloutId, _Mapping]] = ..., reward: _Optional[float] = ..., failed: _Optional[str] = ...) -> None: ...

class Consumed(_message.Message):
    __slots__ = ("plan", "rollouts")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    plan: int
    rollouts: _containers.RepeatedCompositeFieldContainer[ConsumedRollout]
    def __init__(self, plan: _Optional[int] = ..., rollouts: _Optional[_Iterable[_Union[ConsumedRollout, _Mapping]]] = ...) -> None: ...

class ConsumedRollout(_message.Message):
    __slots__ = ("rollout", "tokens", "masked_in")
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MASKED_IN_FIELD_NUMBER: _ClassVar[int]
    rollout: RolloutId
    tokens: int
    masked_in: int
    def __init__(self, rollout: _Optional[_Union[RolloutId, _Mapping]] = ..., tokens: _Optional[int] = ..., masked_in: _Optional[int] = ...) -> None: ...

class ResyncDecision(_message.Message):
    __slots__ = ("resynchronise", "level", "ess", "threshold")
    RESYNCHRONISE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    ESS_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    resynchronise: bool
    level: str
    ess: float
    threshold: float
    def __init__(self, resynchronise: _Optional[bool] = ..., level: _Optional[str] = ..., ess: _Optional[float] = ..., threshold: _Optional[float] = ...) -> None: ...
