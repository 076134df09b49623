//! Decorators around the ports, each breaking one demand: the proof that a check can be red on the pair it judges.

pub mod correction;
pub mod course;
pub mod ends;
pub mod filters;
pub mod lag;
pub mod prefill;
pub mod queue;
pub mod report;
pub mod sampler;
pub mod scorer;
pub mod support;
pub mod template;
pub mod tokens;
pub mod training;
pub mod turns;
pub mod update;
pub mod version;

mod blended;
mod rows;
mod stepwise;
mod tampered;
