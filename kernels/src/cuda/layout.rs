//! What the kernels and this crate hand each other, field by field as the `.cu` files have it.

use crate::Filter;
use crate::adamw::Constants;
use cudarc::driver::{DeviceRepr, ValidAsZeroBits};

/// `HeadRow` of `head_backward.cu`: one row of logits and its loss.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct HeadRow {
    /// Where the row begins in the flat logits.
    pub start: u64,
    /// Its entries.
    pub len: u32,
    /// Place of the drawn token.
    pub sampled: u32,
    /// First of its known places.
    pub known: u32,
    /// One behind the last.
    pub known_end: u32,
    /// Log-sum-exp of `z / T`.
    pub lse: f64,
    /// The same of the sampler's logits.
    pub lse_s: f64,
    /// `1 / T`.
    pub inv_t: f64,
    /// w.
    pub w: f64,
    /// `-A / T`.
    pub factor: f64,
    /// Of the tail; none where it is 0.
    pub scale: f64,
    /// Lower bound of the tail's ratio.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// `HeadScores` of `head_scores.cu`: one row under the weights now, and under the sampler's where it has them, else NaN.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct HeadScores {
    /// Log-sum-exp of `z / T`.
    pub lse: f64,
    /// `-sum_v p_v log p_v`.
    pub entropy: f64,
    /// Mass of the places that are not known.
    pub rest: f64,
    /// log p of the drawn token.
    pub drawn: f64,
    /// Under the sampler's weights.
    pub lse_s: f64,
    /// Under the sampler's weights.
    pub entropy_s: f64,
    /// Under the sampler's weights.
    pub rest_s: f64,
    /// Under the sampler's weights.
    pub drawn_s: f64,
    /// `KL(p_s || p)`.
    pub kl: f64,
    /// 0 where the logits are fine, 1 where one is NaN or positive infinity, 2 where none is finite.
    pub status: u32,
    /// The same of the sampler's.
    pub status_s: u32,
}

/// `RatioSums` of `ess.cu`: one piece of a list of log ratios.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct RatioSums {
    /// Largest log ratio.
    pub max: f64,
    /// `sum exp(x - max)`.
    pub sum: f64,
    /// `sum exp(2 (x - max))`.
    pub squares: f64,
    /// `-sum x`.
    pub k1: f64,
    /// `sum (exp(x) - 1 - x)`.
    pub k3: f64,
    /// How many are outside the bounds.
    pub clipped: u32,
    /// How many are NaN or infinite.
    pub bad: u32,
}

/// `Stage` of `sample_report.cu`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Stage {
    filter: i32,
    unused: i32,
    value: f64,
}

impl From<&Filter> for Stage {
    fn from(filter: &Filter) -> Self {
        let (filter, value) = match *filter {
            Filter::Temperature(t) => (0, t),
            Filter::TopK(k) => (1, k as f64),
            Filter::TopP(p) => (2, p),
            Filter::MinP(p) => (3, p),
        };
        Self { filter, unused: 0, value }
    }
}

/// `Report` of `sample_report.cu`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Report {
    pub(super) log_q: f64,
    pub(super) log_p: f64,
    pub(super) log_sum_exp: f64,
    pub(super) kept_mass: f64,
    pub(super) token: u32,
    pub(super) kept: u32,
    pub(super) status: u32,
    pub(super) overflow: u32,
}

const _: () = assert!(size_of::<HeadRow>() == 88 && size_of::<HeadScores>() == 80 && size_of::<RatioSums>() == 48);
const _: () = assert!(size_of::<Stage>() == 16 && size_of::<Report>() == 48 && size_of::<Constants>() == 36);

macro_rules! plain {
    ($($layout:ty),*) => {$(
        // SAFETY: `repr(C)` of numbers alone, of the size the .cu file asserts, so it travels as bytes.
        unsafe impl DeviceRepr for $layout {}
        // SAFETY: every field is a number, for which zero bits are zero.
        unsafe impl ValidAsZeroBits for $layout {}
    )*};
}

plain!(HeadRow, HeadScores, RatioSums, Stage, Report, Constants);
