//! The moments on disk: one safetensors file, `m.<name>` and `v.<name>` for every parameter, and the step in its header.

use super::{Floats, Moments, Optimiser};
use crate::{Error, Result, Weights};
use lockstep_kernels::adamw::AdamW;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Writes `bytes` so that `path` holds either the old file or the whole new one, also after a crash.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let error = |path: &Path, source| Error::File { path: path.into(), source };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    let mut file = File::create(&temporary).map_err(|e| error(&temporary, e))?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|e| error(&temporary, e));
    let renamed = written.and_then(|()| std::fs::rename(&temporary, path).map_err(|e| error(path, e)));
    renamed.inspect_err(|_| drop(std::fs::remove_file(&temporary)))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| error(folder, e))
}

impl Optimiser {
    /// Writes step and moments: a temporary file, synced, renamed.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let bytes = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let mut named = Vec::new();
        for (name, Moments { m, v }) in &self.moments {
            for (kind, moment) in [("m", m), ("v", v)] {
                named.push((format!("{kind}.{name}"), moment.len(), bytes(&moment.values()?)));
            }
        }
        let views = named.iter().map(|(name, len, data)| Ok((name, TensorView::new(Dtype::F32, vec![*len], data)?)));
        let views = views.collect::<std::result::Result<Vec<_>, safetensors::SafeTensorError>>();
        let header = HashMap::from([("step".to_owned(), self.step.to_string())]);
        let bytes = views.and_then(|views| safetensors::serialize(views, Some(header)));
        write_whole(path, &bytes.map_err(|e| contents(path, e))?)
    }

    /// Reads what [`Optimiser::save`] wrote, for the same parameters.
    ///
    /// # Errors
    /// A file that is not there or damaged, without step, or with moments of other parameters, by name.
    pub fn load(path: &Path, weights: &Weights, (rule, max_norm): (AdamW, f64)) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|source| Error::File { path: path.into(), source })?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| contents(path, e))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| contents(path, e))?;
        let step = header.metadata().as_ref().and_then(|header| header.get("step")?.parse().ok());
        let step = step.ok_or_else(|| contents(path, "no step in its header"))?;
        let mut moments = BTreeMap::new();
        for (name, var) in weights.iter() {
            let read =
                |prefix: &str| Floats::on(floats(&file, &format!("{prefix}.{name}"), var.elem_count())?, var.device());
            moments.insert(name.to_owned(), Moments { m: read("m")?, v: read("v")? });
        }
        let known = |name: &str| name.get(2..).is_some_and(|name| moments.contains_key(name));
        let names: Vec<String> = file.names().iter().filter(|name| !known(name)).map(|name| name.to_string()).collect();
        if names.is_empty() { Ok(Self { rule, max_norm, step, moments }) } else { Err(Error::Unexpected { names }) }
    }
}

fn floats(file: &SafeTensors<'_>, name: &str, len: usize) -> Result<Vec<f32>> {
    let missing = |_| Error::Missing { name: name.into(), shape: vec![len] };
    let view = file.tensor(name).map_err(missing)?;
    if view.dtype() != Dtype::F32 {
        return Err(Error::Dtype { name: name.into(), dtype: format!("{:?}", view.dtype()) });
    }
    if view.shape() != [len] {
        return Err(Error::Shape { name: name.into(), got: view.shape().to_vec(), want: vec![len] });
    }
    Ok(view.data().chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect())
}

fn contents(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::Contents { path: path.into(), reason: reason.to_string() }
}
