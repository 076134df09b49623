//! The named tensors of a model, f32, in name order. One set serves sampler and trainer: a clone shares the memory, a
//! `snapshot` does not.

use crate::{Config, Error, Result};
use candle_core::{CpuStorage, DType, Device, Storage, Tensor, Var};
use lockstep_kernels::philox::normal;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

mod files;

pub(crate) use files::replace;

/// Named variables in name order.
#[derive(Debug, Clone)]
pub struct Weights(BTreeMap<String, Var>);

impl Weights {
    /// Reads `model.safetensors`, or the files that `model.safetensors.index.json` lists, and checks them against `config`.
    pub fn load(dir: &Path, config: &Config) -> Result<Self> {
        let mut found = files::read(dir)?;
        found.retain(|name, _| !name.ends_with("rotary_emb.inv_freq"));
        if config.tied {
            drop_tied_head(&mut found);
        }
        Self::checked(found, config)
    }

    /// Reads one safetensors file, as [`Weights::save`] writes it, and checks it against `config`.
    pub fn load_file(path: &Path, config: &Config) -> Result<Self> {
        Self::checked(files::read_file(path)?, config)
    }

    /// Deterministic random weights: entry `i` of the `k`-th tensor is `std * normal(seed, k, i)`, norms are 1.
    pub fn random(config: &Config, seed: u64, std: f64) -> Result<Self> {
        let tensors = config.tensors().into_iter().zip(0u64..);
        let tensors = tensors.map(|((name, shape), stream)| {
            let n: usize = shape.iter().product();
            let draw = |i| if shape.len() == 1 { 1.0 } else { (std * normal(seed, stream, i as u64)) as f32 };
            let values: Vec<f32> = (0..n).into_par_iter().with_min_len(4096).map(draw).collect();
            Ok((name, Tensor::from_vec(values, shape, &Device::Cpu)?))
        });
        Self::checked(tensors.collect::<Result<_>>()?, config)
    }

    /// Takes exactly the tensors `config` calls for, each of its shape.
    fn checked(mut found: BTreeMap<String, Tensor>, config: &Config) -> Result<Self> {
        let mut all = BTreeMap::new();
        for (name, want) in config.tensors() {
            let Some(tensor) = found.remove(&name) else { return Err(Error::Missing { name, shape: want }) };
            if tensor.dims() != want {
                return Err(Error::Shape { name, got: tensor.dims().to_vec(), want });
            }
            all.insert(name, Var::from_tensor(&tensor)?);
        }
        if found.is_empty() { Ok(Self(all)) } else { Err(Error::Unexpected { names: found.into_keys().collect() }) }
    }

    /// The variables in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.0.iter().map(|(name, var)| (name.as_str(), var))
    }

    /// One variable by name.
    pub fn get(&self, name: &str) -> Option<&Var> {
        self.0.get(name)
    }

    /// Makes some rows of a matrix equal to the first of them: ids that share a row of the head have one logit.
    ///
    /// # Errors
    /// No such matrix, or one with fewer rows.
    pub fn equal_rows(&self, name: &str, rows: Range<usize>) -> Result<()> {
        let missing = || Error::Missing { name: name.into(), shape: vec![rows.end] };
        let var = self.get(name).ok_or_else(missing)?;
        let (all, columns) = var.dims2()?;
        if rows.is_empty() || rows.end > all {
            return Err(Error::Shape { name: name.into(), got: vec![all, columns], want: vec![rows.end, columns] });
        }
        let mut values: Vec<f32> = var.flatten_all()?.to_vec1()?;
        let first = values[rows.start * columns..(rows.start + 1) * columns].to_vec();
        rows.for_each(|row| values[row * columns..(row + 1) * columns].copy_from_slice(&first));
        Ok(var.set(&Tensor::from_vec(values, (all, columns), var.device())?)?)
    }

    /// Where they are.
    pub fn device(&self) -> Device {
        self.0.values().next().map_or(Device::Cpu, |var| var.device().clone())
    }

    /// A copy on `device`, to be trained there: f32, as the master weights are.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        self.converted(device, |_, _| DType::F32)
    }

    /// A copy on `device`, to sample with: matrices in bf16, but for the head `[V, H]` and the norms, which stay f32.
    pub fn for_sampling(&self, device: &Device, tied: bool) -> Result<Self> {
        let head = crate::head::head_name(tied);
        self.converted(device, |name, var| if var.rank() > 1 && name != head { DType::BF16 } else { DType::F32 })
    }

    /// A copy of the vectors on `device`, f32, without the matrices.
    pub(crate) fn vectors(&self, device: &Device) -> Result<Self> {
        let vectors = self.0.iter().filter(|(_, var)| var.rank() == 1);
        Self(vectors.map(|(name, var)| (name.clone(), var.clone())).collect()).to_device(device)
    }

    fn converted(&self, device: &Device, dtype: impl Fn(&str, &Var) -> DType) -> Result<Self> {
        let copies = self.0.iter().map(|(name, var)| {
            let moved = var.as_detached_tensor().to_device(device)?.to_dtype(dtype(name, var))?;
            Ok((name.clone(), Var::from_tensor(&moved.copy()?)?))
        });
        Self::there(copies.collect::<Result<_>>()?)
    }

    /// Number of floats in all tensors.
    pub fn floats(&self) -> usize {
        self.0.values().map(|var| var.elem_count()).sum()
    }

    /// A copy in memory of its own, which later updates of these weights do not touch.
    pub fn snapshot(&self) -> Result<Self> {
        let copies =
            self.0.iter().map(|(name, var)| Ok((name.clone(), Var::from_tensor(&var.as_detached_tensor().copy()?)?)));
        Self::there(copies.collect::<Result<_>>()?)
    }

    /// Copies that are complete: another thread, which has a stream of its own on a card, may read them.
    fn there(copies: BTreeMap<String, Var>) -> Result<Self> {
        let copies = Self(copies);
        copies.device().synchronize()?;
        Ok(copies)
    }

    /// Overwrites these weights, in place, with the values of `other`: every model built on them sees the change.
    pub fn assign(&self, other: &Self) -> Result<()> {
        for (name, var) in &self.0 {
            let source =
                other.get(name).ok_or_else(|| Error::Missing { name: name.clone(), shape: var.dims().to_vec() })?;
            if source.dims() != var.dims() {
                return Err(Error::Shape {
                    name: name.clone(),
                    got: source.dims().to_vec(),
                    want: var.dims().to_vec(),
                });
            }
            var.set(&source.as_detached_tensor().to_device(var.device())?.to_dtype(var.dtype())?)?;
        }
        Ok(())
    }

    /// Writes one safetensors file: a temporary file beside it, synced, renamed. A reader never sees half of it.
    pub fn save(&self, path: &Path) -> Result<()> {
        let bytes = self.iter().map(|(name, var)| Ok((name.to_owned(), (var.dims().to_vec(), little_endian(var)?))));
        files::write(path, &bytes.collect::<Result<_>>()?)
    }

    /// blake3 of `(length of name, name, rank, dims, f32 little-endian)` of every tensor in name order; lengths, rank and
    /// dims are u64 little-endian.
    pub fn digest(&self) -> Result<[u8; 32]> {
        let mut hash = blake3::Hasher::new();
        for (name, var) in self.iter() {
            hash.update(&(name.len() as u64).to_le_bytes());
            hash.update(name.as_bytes());
            hash.update(&(var.rank() as u64).to_le_bytes());
            for dim in var.dims() {
                hash.update(&(*dim as u64).to_le_bytes());
            }
            hash.update(&little_endian(var)?);
        }
        Ok(hash.finalize().into())
    }
}

fn little_endian(var: &Var) -> Result<Vec<u8>> {
    let (storage, layout) = var.storage_and_layout();
    let bytes = |floats: &[f32]| floats.iter().flat_map(|x| x.to_le_bytes()).collect();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::F32(floats)), Some((start, end))) => Ok(bytes(&floats[start..end])),
        _ => Ok(bytes(&var.flatten_all()?.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.to_vec1()?)),
    }
}

/// A tied model may carry its head as a copy of the embedding; a head that differs is left, and refused as unexpected.
fn drop_tied_head(found: &mut BTreeMap<String, Tensor>) {
    let values = |name: &str| found.get(name).and_then(|t| t.flatten_all().ok()?.to_vec1::<f32>().ok());
    let head = values("lm_head.weight");
    if head.is_some() && head == values("model.embed_tokens.weight") {
        found.remove("lm_head.weight");
    }
}
