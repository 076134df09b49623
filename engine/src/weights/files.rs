//! safetensors on disk. A truncated or damaged file is an error that names it.

use crate::config::read_json;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::Write;
use std::path::{Component, Path};

type Named = BTreeMap<String, Tensor>;

fn file_error(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::File { path: path.into(), source }
}

fn contents(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::Contents { path: path.into(), reason: reason.to_string() }
}

/// Every tensor of a model folder, widened to f32.
pub(super) fn read(dir: &Path) -> Result<Named> {
    let index = dir.join("model.safetensors.index.json");
    let single = dir.join("model.safetensors");
    if single.exists() || !index.exists() {
        return read_file(&single);
    }
    let json = read_json(&index)?;
    let map = json["weight_map"].as_object().ok_or_else(|| contents(&index, "no weight_map"))?;
    let named = map.values().map(|file| plain_name(&index, file.as_str().unwrap_or_default()));
    let shards = named.collect::<Result<BTreeSet<_>>>()?;
    let mut all = Named::new();
    for shard in shards {
        all.extend(read_file(&dir.join(shard))?);
    }
    match map.keys().find(|name| !all.contains_key(*name)) {
        Some(name) => Err(contents(&index, format!("{name} is listed but none of the files holds it"))),
        None => Ok(all),
    }
}

/// The name of a file in the same folder; an index must not lead anywhere else.
fn plain_name<'a>(index: &Path, file: &'a str) -> Result<&'a str> {
    let mut parts = Path::new(file).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(_)), None) => Ok(file),
        _ => Err(contents(index, format!("{file:?} is not the name of a file in this folder"))),
    }
}

/// Every tensor of one file, widened to f32.
pub(super) fn read_file(path: &Path) -> Result<Named> {
    let bytes = std::fs::read(path).map_err(file_error(path))?;
    let tensors =
        SafeTensors::deserialize(&bytes).map_err(|e| contents(path, format!("{} bytes, {e}", bytes.len())))?;
    tensors.iter().map(|(name, view)| Ok((name.to_owned(), widen(name, &view)?))).collect()
}

fn widen(name: &str, view: &TensorView<'_>) -> Result<Tensor> {
    let dtype = match view.dtype() {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        other => return Err(Error::Dtype { name: name.into(), dtype: format!("{other:?}") }),
    };
    let tensor = Tensor::from_raw_buffer(view.data(), dtype, view.shape(), &Device::Cpu)?;
    Ok(tensor.to_dtype(DType::F32)?)
}

/// Writes f32 tensors, given as little-endian bytes.
pub(super) fn write(path: &Path, tensors: &BTreeMap<String, (Vec<usize>, Vec<u8>)>) -> Result<()> {
    let views =
        tensors.iter().map(|(name, (shape, data))| Ok((name, TensorView::new(Dtype::F32, shape.clone(), data)?)));
    let views = views.collect::<std::result::Result<Vec<_>, safetensors::SafeTensorError>>();
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let bytes = views.and_then(|views| safetensors::serialize(views, Some(format))).map_err(|e| contents(path, e))?;
    replace(path, &bytes)
}

/// A temporary file beside `path`, synced, renamed over it, and the folder synced. A failure takes the temporary file back.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    let mut file = File::create(&temporary).map_err(file_error(&temporary))?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).map_err(file_error(&temporary));
    let renamed = written.and_then(|()| std::fs::rename(&temporary, path).map_err(file_error(path)));
    renamed.inspect_err(|_| drop(std::fs::remove_file(&temporary)))?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(file_error(folder))
}
