//! The keys and values of a ragged batch. Every row has its own length and its own memory, so there is no padding to mask
//! and a finished row gives its memory back. On a card all rows share two tensors a layer (`padded`).

use candle_core::{DType, Device};

mod padded;

pub(crate) use padded::{Append, Padded, STEP};

/// Keys and values of one sequence, a flat `[len, kv_heads * head_dim]` for every layer.
#[derive(Debug, Clone)]
struct Row {
    len: usize,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

/// What a batch of sequences has computed so far.
#[derive(Debug, Clone)]
pub struct Cache {
    layers: usize,
    rows: Vec<Row>,
    /// Where they are held on a card, and the rows know their lengths alone.
    padded: Option<Padded>,
}

impl Cache {
    /// `rows` empty sequences for a model of `layers` layers.
    pub fn new(layers: usize, rows: usize) -> Self {
        let row = Row { len: 0, keys: vec![Vec::new(); layers], values: vec![Vec::new(); layers] };
        Self { layers, rows: vec![row; rows], padded: None }
    }

    /// The same for candle's own operations, keys and values of `shape` `(kv_heads, D)` in `dtype` on `device`.
    pub(crate) fn padded(layers: usize, rows: usize, shape: (usize, usize), at: (DType, Device)) -> Self {
        Self { padded: Some(Padded::new(layers, shape, at)), ..Self::new(layers, rows) }
    }

    /// Room for `new[row]` tokens a row; `None` where the rows hold their own memory.
    pub(crate) fn prepare(&mut self, new: &[usize]) -> candle_core::Result<Option<Append>> {
        let lens: Vec<usize> = self.rows.iter().map(|row| row.len).collect();
        self.padded.as_mut().map(|padded| padded.prepare(&lens, new)).transpose()
    }

    /// The tensors of a card.
    pub(crate) fn on_card(&mut self) -> Option<&mut Padded> {
        self.padded.as_mut()
    }

    /// How many sequences are in the batch.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// How many layers the model has.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Tokens held of row `row`; 0 where there is no such row.
    pub fn len(&self, row: usize) -> usize {
        self.rows.get(row).map_or(0, |row| row.len)
    }

    /// `true` when there is no row left.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Keeps the rows for which `keep(row)` holds, in order; the others give back their memory.
    pub fn keep(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let stays: Vec<bool> = (0..self.rows.len()).map(&mut keep).collect();
        if let Some(padded) = &mut self.padded {
            padded.keep(stays.len(), (0..stays.len()).filter(|row| stays[*row]));
        }
        let mut stays = stays.into_iter();
        self.rows.retain(|_| stays.next().unwrap_or_default());
    }

    /// Appends the keys and values of `new[row]` tokens to every row of `layer`; `width` floats a token.
    pub(crate) fn append(&mut self, layer: usize, new: &[usize], (keys, values): (&[f32], &[f32])) {
        let tokens: usize = new.iter().sum();
        let width = keys.len() / tokens.max(1);
        let mut start = 0;
        for (row, n) in self.rows.iter_mut().zip(new) {
            let end = start + n * width;
            row.keys[layer].extend_from_slice(&keys[start..end]);
            row.values[layer].extend_from_slice(&values[start..end]);
            start = end;
        }
    }

    /// Counts the appended tokens once all layers hold them.
    pub(crate) fn advance(&mut self, new: &[usize]) {
        for (row, n) in self.rows.iter_mut().zip(new) {
            row.len += n;
        }
    }

    /// Keys and values of one row in one layer.
    pub(crate) fn row(&self, layer: usize, row: usize) -> (&[f32], &[f32]) {
        let row = &self.rows[row];
        (&row.keys[layer], &row.values[layer])
    }
}
