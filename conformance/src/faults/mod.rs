//! Decorators around the ports, each breaking one demand: the proof that a check can be red on the pair it judges.

pub mod correction;
pub mod lag;
pub mod queue;
pub mod sampler;
pub mod tokens;
pub mod version;

mod mapped;
mod rows;
mod stepwise;
