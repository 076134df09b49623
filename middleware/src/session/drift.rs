//! How ids differ from those that rendering the same conversation again would give: which differences are the template's
//! ways, which are the tokenizer's, and which are none of these.

use super::{ChatModel, SessionError, Show};
use lockstep_core::TokenId;
use std::fmt;

/// A stretch in which two id lists differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    /// Where it starts in the ids that were kept.
    pub at: usize,
    /// The ids there that were kept.
    pub kept: Vec<TokenId>,
    /// What rendering gives there.
    pub rendered: Vec<TokenId>,
    /// What kind of difference it is.
    pub kind: DriftKind,
}

/// Kinds of difference. All but [`DriftKind::Text`] say the same conversation otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DriftKind {
    /// The same text in other tokens.
    Tokens,
    /// New lines and spaces alone.
    WhiteSpace,
    /// A think block without thinking.
    EmptyThink,
    /// A think block, tags and all.
    Thinking,
    /// The same JSON with other spaces.
    JsonSpaces,
    /// Another text.
    Text,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            DriftKind::Tokens => "the same text in other tokens",
            DriftKind::WhiteSpace => "white space alone",
            DriftKind::EmptyThink => "an empty think block",
            DriftKind::Thinking => "a think block",
            DriftKind::JsonSpaces => "JSON with other spaces",
            DriftKind::Text => "another text",
        };
        let list = |ids: &[TokenId]| ids.iter().take(8).map(TokenId::to_string).collect::<Vec<_>>().join(" ");
        write!(f, "at {}: {what}, kept [{}], rendered [{}]", self.at, list(&self.kept), list(&self.rendered))
    }
}

/// Every stretch in which `rendered` differs from `kept`, with its kind. Equal lists give none.
///
/// Both are cut where they meet again on a special token, so that one difference does not hide the next.
///
/// # Errors
/// Ids outside the vocabulary.
pub fn drifts(model: &ChatModel, kept: &[TokenId], rendered: &[TokenId]) -> Result<Vec<Drift>, SessionError> {
    let turns = |ids: &[TokenId]| -> Vec<(usize, usize)> {
        let starts = (0..ids.len()).filter(|&at| at == 0 || model.is_special(ids[at]));
        let starts: Vec<usize> = starts.collect();
        let ends = starts.iter().skip(1).copied().chain([ids.len()]);
        starts.iter().copied().zip(ends).filter(|(from, to)| from < to).collect()
    };
    let (ours, theirs) = (turns(kept), turns(rendered));
    let mut found = Vec::new();
    for place in 0..ours.len().max(theirs.len()) {
        let part = |turns: &[(usize, usize)], len: usize| turns.get(place).copied().unwrap_or((len, len));
        let (a, b) = (part(&ours, kept.len()), part(&theirs, rendered.len()));
        let (left, right) = (&kept[a.0..a.1], &rendered[b.0..b.1]);
        if left == right {
            continue;
        }
        let start = left.iter().zip(right).take_while(|(x, y)| x == y).count();
        let most = left.len().min(right.len()) - start;
        let end = left.iter().rev().zip(right.iter().rev()).take(most).take_while(|(x, y)| x == y).count();
        let (left, right) = (&left[start..left.len() - end], &right[start..right.len() - end]);
        let whole = (&kept[a.0..a.1], &rendered[b.0..b.1]);
        let kind = kind(model, (left, right), whole)?;
        found.push(Drift { at: a.0 + start, kept: left.to_vec(), rendered: right.to_vec(), kind });
    }
    Ok(found)
}

fn kind(
    model: &ChatModel,
    (left, right): (&[TokenId], &[TokenId]),
    (turn, other): (&[TokenId], &[TokenId]),
) -> Result<DriftKind, SessionError> {
    let text = |ids: &[TokenId]| model.decode(ids, Show::ALL);
    let (turn, other) = (text(turn)?, text(other)?);
    if turn == other {
        return Ok(DriftKind::Tokens);
    }
    if without_json_spaces(&turn) == without_json_spaces(&other) {
        return Ok(DriftKind::JsonSpaces);
    }
    let (stretch, other_stretch) = (text(left)?, text(right)?);
    if stretch.trim().is_empty() && other_stretch.trim().is_empty() {
        return Ok(DriftKind::WhiteSpace);
    }
    for (think, kind) in [(Think::Empty, DriftKind::EmptyThink), (Think::Any, DriftKind::Thinking)] {
        let (without, other_without) = (without_think(&turn, think), without_think(&other, think));
        let removed = without != turn || other_without != other;
        if removed && without == other_without {
            return Ok(kind);
        }
    }
    Ok(DriftKind::Text)
}

/// The text without white space next to what JSON puts between values.
fn without_json_spaces(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut space = String::new();
    for character in text.chars() {
        if character.is_whitespace() {
            space.push(character);
            continue;
        }
        let after = kept.ends_with([',', ':', '{', '[']);
        let before = matches!(character, '}' | ']' | ',' | ':');
        if !after && !before {
            kept.push_str(&space);
        }
        space.clear();
        kept.push(character);
    }
    kept + &space
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Think {
    Empty,
    Any,
}

/// The text without such blocks and the new lines after them.
fn without_think(text: &str, think: Think) -> String {
    let (mut kept, mut rest) = (String::new(), text);
    while let Some(open) = rest.find("<think>") {
        let inside = &rest[open + "<think>".len()..];
        let Some(close) = inside.find("</think>") else { break };
        let end = open + "<think>".len() + close + "</think>".len();
        if think == Think::Any || inside[..close].trim().is_empty() {
            kept.push_str(&rest[..open]);
            rest = rest[end..].trim_start_matches('\n');
        } else {
            kept.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    kept.push_str(rest);
    kept
}
