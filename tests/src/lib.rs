//! What the cross-crate tests share.

pub mod binary;
pub mod files;
pub mod proto;
