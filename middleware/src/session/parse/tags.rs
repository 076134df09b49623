//! Tags in a text that arrives piece by piece.

/// Bytes at the end of `text` that could be the start of `tag`.
pub(super) fn started(text: &str, tag: &str) -> usize {
    let longest = tag.len().saturating_sub(1).min(text.len());
    (1..=longest).rev().find(|&length| tag.is_char_boundary(length) && text.ends_with(&tag[..length])).unwrap_or(0)
}

/// Takes the text before `tag`, and the tag, out of `held`; `None` while the tag is not there.
pub(super) fn until(held: &mut String, tag: &str) -> Option<String> {
    let at = held.find(tag)?;
    let before = held[..at].to_owned();
    held.drain(..at + tag.len());
    Some(before)
}

/// Takes what cannot be part of `tag`, whatever follows, out of `held`; `more` bytes at the end stay in any case.
pub(super) fn certain(held: &mut String, tag: &str) -> String {
    let keep = held.len() - started(held, tag);
    held.drain(..keep).collect()
}
