//! Fix 4: every token carries the version of the weights that drew it, and it is true.

pub mod cache;
pub mod evidence;
mod moved;
pub mod repeat;
pub mod update;
