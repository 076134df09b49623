//! Faults between decoding a prefix and being given it.

use super::{
    report::noisy,
    tokens::{Part, reencoding},
};
use crate::check::Fault;

/// Loses decoded tokens.
pub const DECODED_LOST: Fault = Fault {
    id: "decoded-lost",
    does: "resumes without the tokens that were decoded: they are missing from attention",
    break_target: |target| {
        reencoding(target, |given, part, _| match part {
            Part::Prompt => given.to_vec(),
            Part::Resumed => vec![],
        })
    },
};

/// Decodes in a coarser format.
pub const DECODE_COARSE: Fault = Fault {
    id: "decode-coarse",
    does: "decodes one number format coarser than it reads prompts",
    break_target: |target| noisy(target, |at| if at.row > at.call.request.resumed.len() as u64 { 1.0 } else { 0.0 }),
};

/// Reads prompts in a coarser format.
pub const PREFILL_COARSE: Fault = Fault {
    id: "prefill-coarse",
    does: "reads prompts one number format coarser than it decodes",
    break_target: |target| noisy(target, |at| if at.row > at.call.request.resumed.len() as u64 { 0.0 } else { 1.0 }),
};
