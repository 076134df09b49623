//! A model's chat template, for the suite.

use crate::session::{Ask, ChatModel, Conversation, SessionError};
use lockstep_conformance::ChatTemplate;
use serde_json::Value;
use std::{path::Path, sync::Arc};

struct OfModel(ChatModel);

impl ChatTemplate for OfModel {
    fn render(&self, messages: &[Value], open: bool) -> Result<String, String> {
        let ask = if open { Ask::Answer } else { Ask::Nothing };
        self.0.text(Conversation::new(messages, &[]), ask).map_err(|error| error.to_string())
    }

    fn known(&self) -> Vec<String> {
        self.0.findings().iter().map(ToString::to_string).collect()
    }
}

/// The template of a model's directory; `None` where it has none.
///
/// # Errors
/// Files that do not read.
pub fn template(directory: &Path) -> Result<Option<Arc<dyn ChatTemplate>>, SessionError> {
    let model = ChatModel::load(directory)?;
    Ok(model.has_template().then(|| Arc::new(OfModel(model)) as _))
}
