//! What a step is told and what it answers, on the wire.

use super::{WireError, columns, proto, required};
use lockstep_core::{
    dlc::{
        EssReport, LagClip, Rule, TailModel,
        statistics::{RatioShape, TermReport, TermStatistics},
    },
    ports::{ProbeLoss, StepOptions, StepReport},
};

impl From<&StepOptions> for proto::StepOptions {
    fn from(options: &StepOptions) -> Self {
        use proto::rule::Rule as Wire;
        let rule = match options.rule {
            Rule::Uncorrected => Wire::Uncorrected(proto::Empty {}),
            Rule::Method(method) => Wire::Method(method.name().to_owned()),
            Rule::Dlc { lag_clip, tail } => {
                let tail = match tail {
                    TailModel::SamplerWeights => proto::TailModel::SamplerWeights,
                    TailModel::Collapsed => proto::TailModel::Collapsed,
                };
                Wire::Dlc(proto::Dlc { clip_low: lag_clip.low(), clip_high: lag_clip.high(), tail: tail as i32 })
            }
        };
        Self { rule: Some(proto::Rule { rule: Some(rule) }), horizon: options.horizon }
    }
}

impl TryFrom<proto::StepOptions> for StepOptions {
    type Error = WireError;

    fn try_from(options: proto::StepOptions) -> Result<Self, WireError> {
        use proto::rule::Rule as Wire;
        let rule = match required(options.rule.and_then(|rule| rule.rule), "step options", "rule")? {
            Wire::Uncorrected(_) => Rule::Uncorrected,
            Wire::Method(name) => Rule::Method(name.parse().map_err(WireError::broken)?),
            Wire::Dlc(dlc) => Rule::Dlc {
                lag_clip: LagClip::new(dlc.clip_low, dlc.clip_high).map_err(WireError::broken)?,
                tail: match dlc.tail() {
                    proto::TailModel::SamplerWeights => TailModel::SamplerWeights,
                    proto::TailModel::Collapsed => TailModel::Collapsed,
                    proto::TailModel::Unspecified => return required(None, "dlc", "tail"),
                },
            },
        };
        Ok(Self { rule, horizon: options.horizon })
    }
}

impl From<TermStatistics> for proto::Term {
    fn from(TermStatistics { mean, mean_abs, k2, k3, chi2, max_abs, kl }: TermStatistics) -> Self {
        Self { mean, k3, max_abs, kl, k2, chi2, mean_abs }
    }
}

impl From<proto::Term> for TermStatistics {
    fn from(proto::Term { mean, k3, max_abs, kl, k2, chi2, mean_abs }: proto::Term) -> Self {
        Self { mean, mean_abs, k2, k3, chi2, max_abs, kl }
    }
}

impl From<RatioShape> for proto::RatioShape {
    fn from(RatioShape { lag_variance, lag_pareto_k, numeric_pareto_k }: RatioShape) -> Self {
        Self { lag_variance, lag_pareto_k, numeric_pareto_k }
    }
}

impl From<proto::RatioShape> for RatioShape {
    fn from(proto::RatioShape { lag_variance, lag_pareto_k, numeric_pareto_k }: proto::RatioShape) -> Self {
        Self { lag_variance, lag_pareto_k, numeric_pareto_k }
    }
}

impl From<&StepReport> for proto::StepReport {
    fn from(report: &StepReport) -> Self {
        let terms = &report.terms;
        let ess = report.ess.iter().map(|&(drawn_at, ess)| proto::Ess {
            drawn_at: Some(drawn_at.into()),
            token: ess.token,
            sequence: ess.sequence,
            horizon: ess.horizon,
            horizon_tokens: ess.horizon_tokens,
            sequences: ess.sequences as u64,
            tokens: ess.tokens as u64,
        });
        Self {
            before: Some(report.before.into()),
            after: Some(report.after.into()),
            loss: report.loss,
            gradient_norm: report.gradient_norm,
            lag: Some(terms.lag.into()),
            numeric: Some(terms.numeric.into()),
            clipped_share: terms.clipped_share,
            support_size: terms.support_size,
            tokens: terms.tokens as u64,
            ess: ess.collect(),
            full: Some(terms.full.into()),
            head_mass: terms.head_mass,
            shape: Some(terms.shape.into()),
        }
    }
}

impl TryFrom<proto::StepReport> for StepReport {
    type Error = WireError;

    fn try_from(report: proto::StepReport) -> Result<Self, WireError> {
        let ess = report.ess.into_iter().map(|ess| {
            let drawn_at = required(ess.drawn_at, "ess", "drawn_at")?.into();
            let report = EssReport {
                token: ess.token,
                sequence: ess.sequence,
                horizon: ess.horizon,
                horizon_tokens: ess.horizon_tokens,
                sequences: ess.sequences as usize,
                tokens: ess.tokens as usize,
            };
            Ok((drawn_at, report))
        });
        Ok(Self {
            before: required(report.before, "step report", "before")?.into(),
            after: required(report.after, "step report", "after")?.into(),
            loss: report.loss,
            gradient_norm: report.gradient_norm,
            terms: TermReport {
                lag: required(report.lag, "step report", "lag")?.into(),
                numeric: required(report.numeric, "step report", "numeric")?.into(),
                full: required(report.full, "step report", "full")?.into(),
                head_mass: report.head_mass,
                shape: required(report.shape, "step report", "shape")?.into(),
                clipped_share: report.clipped_share,
                support_size: report.support_size,
                tokens: report.tokens as usize,
            },
            ess: ess.collect::<Result<_, WireError>>()?,
        })
    }
}

impl From<&ProbeLoss> for proto::ProbeLoss {
    fn from(loss: &ProbeLoss) -> Self {
        Self {
            tokens: columns::from_ids(&loss.tokens),
            position: loss.position as u32,
            support: columns::from_ids(&loss.support),
            w: loss.w,
            c: loss.c.clone(),
            temperature: loss.temperature,
        }
    }
}

impl TryFrom<proto::ProbeLoss> for ProbeLoss {
    type Error = WireError;

    fn try_from(loss: proto::ProbeLoss) -> Result<Self, WireError> {
        Ok(Self {
            tokens: columns::to_ids(&loss.tokens, "tokens")?,
            position: loss.position as usize,
            support: columns::to_ids(&loss.support, "support")?,
            w: loss.w,
            c: loss.c,
            temperature: loss.temperature,
        })
    }
}
