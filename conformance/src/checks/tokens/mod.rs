//! Fix 2: token ids in, token ids out.

pub mod ends;
pub mod identity;
pub mod template;
pub mod vocabulary;
