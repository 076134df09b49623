//! A flat f32 buffer beside a parameter: on the CPU a vector, on a card a tensor.

use crate::Result;
use crate::fused::{axpy, with_floats};
use candle_core::{D, DType, Device, Tensor, Var};
use rayon::prelude::*;

/// Floats a parallel piece covers.
const PIECE: usize = 1 << 14;

/// Where the floats are.
#[derive(Debug, Clone)]
pub(crate) enum Floats {
    /// On the CPU.
    Host(Vec<f32>),
    /// On a card, `[n]`.
    Card(Tensor),
    /// As many zeros, for a card, which has no memory for them yet.
    Zeros(usize, Device),
}

/// Of the same values, wherever they are.
impl PartialEq for Floats {
    fn eq(&self, other: &Self) -> bool {
        matches!((self.values(), other.values()), (Ok(one), Ok(two)) if one == two)
    }
}

impl Floats {
    /// Zeros, as many as `var` has, beside it.
    pub(super) fn beside(var: &Var) -> Self {
        match var.device() {
            Device::Cpu => Self::Host(vec![0.0; var.elem_count()]),
            device => Self::Zeros(var.elem_count(), device.clone()),
        }
    }

    /// Takes the memory of its zeros.
    pub(super) fn take_memory(&mut self) -> Result<()> {
        if let Self::Zeros(n, device) = self {
            *self = Self::Card(Tensor::zeros(*n, DType::F32, device)?);
        }
        Ok(())
    }

    /// The given floats on `device`.
    pub(super) fn on(values: Vec<f32>, device: &Device) -> Result<Self> {
        let n = values.len();
        Ok(match device {
            Device::Cpu => Self::Host(values),
            device => Self::Card(Tensor::from_vec(values, n, device)?),
        })
    }

    /// The memory of a card's floats as a tensor of this shape, to be written in place.
    #[cfg(feature = "cuda")]
    pub(crate) fn shared(&mut self, shape: &candle_core::Shape) -> Result<Tensor> {
        self.take_memory()?;
        match self {
            Self::Card(values) => Ok(values.reshape(shape)?),
            _ => Err(crate::Error::Device("floats of the CPU where those of a card are wanted".into())),
        }
    }

    /// The same in memory of its own.
    pub(super) fn copy(&self) -> Result<Self> {
        Ok(match self {
            Self::Card(values) => Self::Card(values.copy()?),
            host => host.clone(),
        })
    }

    pub(super) fn device(&self) -> Device {
        match self {
            Self::Host(_) => Device::Cpu,
            Self::Card(values) => values.device().clone(),
            Self::Zeros(_, device) => device.clone(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Card(values) => values.elem_count(),
            Self::Zeros(n, _) => *n,
        }
    }

    /// A copy on the CPU.
    pub(super) fn values(&self) -> Result<Vec<f32>> {
        Ok(match self {
            Self::Host(values) => values.clone(),
            Self::Card(values) => values.to_vec1()?,
            Self::Zeros(n, _) => vec![0.0; *n],
        })
    }

    /// Adds a gradient of as many entries.
    pub(super) fn add(&mut self, gradient: &Tensor) -> Result<()> {
        match self {
            Self::Host(sum) => {
                let gradient = gradient.contiguous()?;
                with_floats([&gradient], |[gradient]| {
                    add_floats(sum, gradient);
                    Ok(())
                })?;
            }
            Self::Card(sum) => *sum = (&*sum + gradient.flatten_all()?.to_dtype(DType::F32)?)?,
            Self::Zeros(..) => *self = Self::Card(gradient.flatten_all()?.to_dtype(DType::F32)?),
        }
        Ok(())
    }

    /// Adds what is at the same place.
    pub(super) fn merge(&mut self, other: &Self) -> Result<()> {
        match (self, other) {
            (_, Self::Zeros(..)) => {}
            (Self::Host(sum), Self::Host(other)) => add_floats(sum, other),
            (sum, Self::Card(other)) => sum.add(other)?,
            (sum, Self::Host(other)) => sum.add(&Tensor::from_slice(other, other.len(), &Device::Cpu)?)?,
        }
        Ok(())
    }

    /// `sum_i x_i^2`, f64 sums over fixed pieces, so threads do not change it; pieces of a card are summed there, in f32.
    pub(super) fn squares(&self) -> Result<f64> {
        let square = |piece: &[f32]| piece.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        let pieces: Vec<f64> = match self {
            Self::Host(values) => values.par_chunks(PIECE).map(square).collect(),
            Self::Zeros(..) => Vec::new(),
            Self::Card(values) => {
                let (n, piece) = (values.elem_count(), 1024);
                let even = values.narrow(0, 0, n / piece * piece)?.reshape(((), piece))?;
                // A view would bring the whole of its memory to the CPU.
                let rest = || values.narrow(0, n / piece * piece, n % piece)?.force_contiguous()?.to_vec1::<f32>();
                let rest = if n.is_multiple_of(piece) { Vec::new() } else { rest()? };
                let even: Vec<f32> = if n < piece { Vec::new() } else { even.sqr()?.sum(D::Minus1)?.to_vec1()? };
                even.into_iter().map(f64::from).chain([square(&rest)]).collect()
            }
        };
        Ok(pieces.iter().sum())
    }
}

fn add_floats(sum: &mut [f32], gradient: &[f32]) {
    let pieces = sum.par_chunks_mut(PIECE).zip(gradient.par_chunks(PIECE));
    pieces.for_each(|(sum, gradient)| axpy(sum, 1.0, gradient));
}
