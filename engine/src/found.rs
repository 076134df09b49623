//! What an operation on tensors finds besides its tensor.

use candle_core::{Error, Result, Tensor};
use std::cell::RefCell;
use std::result::Result as Outcome;

/// What an operation found, or refused with an error of its own: candle's operations give a tensor, or candle's error.
#[derive(Debug)]
pub(crate) struct Found<T, E>(RefCell<Option<Outcome<T, E>>>);

impl<T, E: From<Error>> Found<T, E> {
    pub(crate) fn nothing() -> Self {
        Self(RefCell::new(None))
    }

    /// Keeps what was given; gives the data of the tensor that `data` makes of it.
    pub(crate) fn keep<S>(&self, given: Outcome<T, E>, data: impl FnOnce(&T) -> Result<S>) -> Result<S> {
        let made = given.as_ref().map_or_else(|_| Err(Error::Msg("refused".into())), data);
        self.0.replace(Some(given));
        made
    }

    /// The tensor and what was kept. The operation's own refusal stands before what candle made of it.
    ///
    /// # Errors
    /// What was refused; candle's error.
    pub(crate) fn take(&self, tensor: Result<Tensor>) -> Outcome<(Tensor, T), E> {
        match self.0.take() {
            Some(Ok(found)) => Ok((tensor?, found)),
            Some(Err(refusal)) => Err(refusal),
            None => Err(tensor.err().unwrap_or_else(|| Error::Msg("an operation found nothing".into())).into()),
        }
    }
}
