//! The wire contract: generated messages, and their translation from and to the words of the core.
//!
//! Nothing is defaulted on the way in: a field that is missing is an error that names it.

pub mod batch;
pub mod columns;
pub mod report;
pub mod words;

/// Generated from `middleware/proto/lockstep.proto` by `make proto`.
#[expect(missing_docs, reason = "generated code")]
#[expect(
    clippy::allow_attributes_without_reason,
    clippy::too_many_arguments,
    clippy::too_many_lines,
    reason = "generated code"
)]
pub mod proto {
    include!("lockstep.v1.rs");
}

/// Largest payload of one message in bytes; longer content is sent in several.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Largest message accepted: a chunk, and what a single piece may add to it.
pub(crate) const MAX_MESSAGE: usize = 8 << 20;

/// A message that says nothing the core can accept.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// A field is not set.
    #[error("{message} has no {field}")]
    Missing {
        /// Name of the message.
        message: &'static str,
        /// Name of its field.
        field: &'static str,
    },
    /// Bytes that are no whole number of values.
    #[error("column {column} has {bytes} bytes, not a multiple of 4")]
    Ragged {
        /// Name of the column.
        column: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// A value outside its range.
    #[error("{field} is {value}, not {expected}")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// What it holds.
        value: String,
        /// What it may hold.
        expected: &'static str,
    },
    /// Pieces in an order that makes no batch.
    #[error("{0}")]
    Order(String),
    /// A rule of the core is broken.
    #[error("{0}")]
    Broken(String),
}

impl WireError {
    pub(crate) fn broken(error: impl std::fmt::Display) -> Self {
        Self::Broken(error.to_string())
    }
}

impl From<WireError> for tonic::Status {
    fn from(error: WireError) -> Self {
        tonic::Status::invalid_argument(error.to_string())
    }
}

pub(crate) fn required<T>(value: Option<T>, message: &'static str, field: &'static str) -> Result<T, WireError> {
    value.ok_or(WireError::Missing { message, field })
}

#[cfg(test)]
mod tests;
