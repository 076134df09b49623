//! Keys and values on a card: two tensors a layer, written in place, all rows as long as the longest. The last slot takes
//! what stands behind the end of a shorter row.

use crate::plain::{self, Padding};
use candle_core::{DType, Device, Result, Tensor};

/// Slots are added in steps of this many.
pub(crate) const STEP: usize = 256;

/// `[rows, kv_heads, slots, D]` a layer, in `dtype`.
#[derive(Debug, Clone)]
pub(crate) struct Padded {
    shape: (usize, usize),
    dtype: DType,
    device: Device,
    slots: usize,
    layers: Vec<Option<(Tensor, Tensor)>>,
    /// Rows that are kept, where some have gone since the last forward.
    kept: Option<Vec<u32>>,
}

/// One forward on the cache: where its tokens go, and what they see.
#[derive(Debug)]
pub(crate) struct Append {
    padding: Padding,
    places: Tensor,
    mask: Tensor,
    tokens: usize,
}

impl Padded {
    /// Nothing held yet; `shape` is `(kv_heads, D)`.
    pub(super) fn new(layers: usize, shape: (usize, usize), (dtype, device): (DType, Device)) -> Self {
        Self { shape, dtype, device, slots: 0, layers: vec![None; layers], kept: None }
    }

    /// Of `rows` rows, those that stay. They move at the next forward.
    pub(super) fn keep(&mut self, rows: usize, kept: impl Iterator<Item = usize>) {
        let before = self.kept.take().unwrap_or_else(|| (0..rows as u32).collect());
        self.kept = Some(kept.map(|row| before[row]).collect());
    }

    /// Makes room for `new[row]` tokens behind the `lens[row]` that each row has.
    pub(crate) fn prepare(&mut self, lens: &[usize], new: &[usize]) -> Result<Append> {
        if let Some(kept) = self.kept.take() {
            let kept = Tensor::from_slice(&kept, kept.len(), &self.device)?;
            self.rewrite(|held| held.index_select(&kept, 0)?.contiguous())?;
        }
        let tokens = lens.iter().zip(new).map(|(len, new)| len + new).max().unwrap_or_default();
        let old = self.slots;
        if tokens + 1 > old {
            self.slots = (tokens + 1).next_multiple_of(STEP);
            let more = (lens.len(), self.shape.0, self.slots - old, self.shape.1);
            let more = Tensor::zeros(more, self.dtype, &self.device)?;
            self.rewrite(|held| Tensor::cat(&[held, &more], 2)?.contiguous())?;
        }
        let padding = Padding::new(new, &self.device)?;
        let longest = padding.longest();
        let place = |(&len, &new): (&usize, &usize)| {
            (0..longest).map(move |i| if i < new { len + i } else { usize::MAX }).collect::<Vec<_>>()
        };
        let last = self.slots - 1;
        let places = lens.iter().zip(new).flat_map(place).map(|place| place.min(last) as u32);
        let places = Tensor::from_vec(places.collect::<Vec<_>>(), (lens.len(), 1, longest, 1), &self.device)?;
        let places = places.broadcast_as((lens.len(), self.shape.0, longest, self.shape.1))?.contiguous()?;
        let mask = plain::mask(lens, (longest, tokens), &self.device)?;
        Ok(Append { padding, places, mask, tokens })
    }

    fn rewrite(&mut self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<()> {
        for (keys, values) in self.layers.iter_mut().flatten() {
            (*keys, *values) = (f(keys)?, f(values)?);
        }
        Ok(())
    }

    /// Appends `k` and `v [N, kv_heads * D]` to a layer and attends to everything it holds.
    pub(crate) fn attend(
        &mut self,
        layer: usize,
        (append, heads): (&Append, crate::fused::attention::Heads),
        [q, k, v]: [&Tensor; 3],
    ) -> Result<Tensor> {
        let rows = append.places.dim(0)?;
        let empty = || Tensor::zeros((rows, self.shape.0, self.slots, self.shape.1), self.dtype, &self.device);
        if self.layers[layer].is_none() {
            self.layers[layer] = Some((empty()?, empty()?));
        }
        let Some((keys, values)) = &self.layers[layer] else { candle_core::bail!("layer {layer} holds nothing") };
        let new = |x: &Tensor| append.padding.spread(&x.to_dtype(self.dtype)?, self.shape.0);
        keys.scatter_set(&append.places, &new(k)?, 2)?;
        values.scatter_set(&append.places, &new(v)?, 2)?;
        let (keys, values) = (keys.narrow(2, 0, append.tokens)?, values.narrow(2, 0, append.tokens)?);
        plain::attention(heads, &append.padding, &append.mask, [q, &keys, &values])
    }
}
