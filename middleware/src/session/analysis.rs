//! What a template does to a history, found out by rendering probes when the model is loaded.

use super::{ChatModel, SessionError, suffix};

/// Something a template does that ids once sampled would not survive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateFinding {
    /// Nothing can be appended to an answer.
    CannotContinue {
        /// Why.
        reason: String,
    },
}

#[derive(Debug)]
pub(super) struct Analysis {
    pub(super) findings: Vec<TemplateFinding>,
    pub(super) turn_end: String,
}

impl Analysis {
    pub(super) fn of(model: &ChatModel) -> Result<Self, SessionError> {
        if !model.has_template() {
            return Ok(Self { findings: Vec::new(), turn_end: String::new() });
        }
        match suffix::turn_end(model) {
            Ok(turn_end) => Ok(Self { findings: Vec::new(), turn_end }),
            Err(error) => Ok(Self {
                findings: vec![TemplateFinding::CannotContinue { reason: error.to_string() }],
                turn_end: String::new(),
            }),
        }
    }
}
