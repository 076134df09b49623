//! Everything the engine refuses, with the numbers on both sides.

use std::path::PathBuf;

/// What every fallible function of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// A refusal or a failure of the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file whose contents are damaged or not what its name promises.
    #[error("{path}: {reason}")]
    Contents {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A config without a field that has no safe default.
    #[error("config has no usable {field}: found {found}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// The JSON value found, `nothing` where there is none.
        found: String,
    },
    /// A model this engine does not implement.
    #[error("{what} is {found}, this engine implements only {wanted}")]
    Unsupported {
        /// The property.
        what: &'static str,
        /// Its value in the config.
        found: String,
        /// The values that work.
        wanted: &'static str,
    },
    /// Two numbers of a config that exclude each other.
    #[error("config is inconsistent: {0}")]
    Inconsistent(String),
    /// An expected tensor that is not there.
    #[error("tensor {name} of shape {shape:?} is missing")]
    Missing {
        /// Name of the tensor.
        name: String,
        /// Its expected shape.
        shape: Vec<usize>,
    },
    /// Tensors that the config does not call for.
    #[error("{} unexpected tensors, the first is {}", names.len(), names.first().map_or("", String::as_str))]
    Unexpected {
        /// Their names.
        names: Vec<String>,
    },
    /// A tensor of another shape.
    #[error("tensor {name} has shape {got:?}, the config wants {want:?}")]
    Shape {
        /// Name of the tensor.
        name: String,
        /// The shape found.
        got: Vec<usize>,
        /// The shape the config implies.
        want: Vec<usize>,
    },
    /// A tensor of a type that is not a float this engine reads.
    #[error("tensor {name} is {dtype}, wanted F32, F16 or BF16")]
    Dtype {
        /// Name of the tensor.
        name: String,
        /// The type found.
        dtype: String,
    },
    /// A sequence that runs past the longest position of the model.
    #[error("position {position} of row {row} is beyond max_position_embeddings {max}")]
    Position {
        /// Row of the batch.
        row: usize,
        /// The position asked for.
        position: usize,
        /// Positions the model has.
        max: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token {id} at place {place} of row {row} is outside a vocabulary of {vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Place in the row.
        place: usize,
        /// Row of the batch.
        row: usize,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A row without tokens.
    #[error("row {row} has no tokens")]
    EmptyRow {
        /// Row of the batch.
        row: usize,
    },
    /// A batch of another size than the cache it runs on.
    #[error("{got} rows of tokens for a cache of {want} rows")]
    Rows {
        /// Rows given.
        got: usize,
        /// Rows of the cache.
        want: usize,
    },
    /// A temperature of zero: the point mass it asks for has no probability ratio.
    #[error("request {request} asks for temperature 0: greedy decoding is a point mass and has no ratio")]
    Greedy {
        /// Index of the request.
        request: usize,
    },
    /// A kernel refused its input.
    #[error("request {request}: {source}")]
    Kernel {
        /// Index of the request.
        request: usize,
        /// What the kernel said.
        source: lockstep_kernels::Error,
    },
    /// A device that cannot be used.
    #[error("{0}")]
    Device(String),
    /// The tensor library failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}
