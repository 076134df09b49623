//! The public reports this suite was built against, and what of it covers each of them.

use std::fmt::Write;

/// Line before the table in the README.
pub const BEGIN: &str = "<!-- cases: begin -->";

/// Line after it.
pub const END: &str = "<!-- cases: end -->";

/// What it takes to see a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Numbers or ids alone.
    Numbers,
    /// A tokenizer or a chat template.
    Template,
    /// An engine that answers while weights change, on a clock of its own.
    Asynchrony,
}

/// What covers a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cover {
    /// A check of the suite, by its name.
    Check(&'static str),
    /// A parser or a constructor that refuses it, by the test that shows so: file in the repository, function.
    Test(&'static str, &'static str),
}

/// A report, or several of one fault.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// `owner/project#number`, the first of them.
    pub report: &'static str,
    /// The fault.
    pub fault: &'static str,
    /// What it takes to see it.
    pub tier: Tier,
    /// What covers it.
    pub covers: &'static [Cover],
}

const fn case(tier: Tier, report: &'static str, fault: &'static str, covers: &'static [Cover]) -> Case {
    Case { report, fault, tier, covers }
}

use Cover::{Check, Test};
use Tier::{Asynchrony, Numbers, Template};

const TURNS: &str = "tests/tests/session/turns.rs";
const BROKEN: &str = "adapters/tests/wire/broken.rs";

/// Every report, by tier.
pub const ALL: [Case; 47] = [
    case(
        Numbers,
        "huggingface/trl#6789",
        "importance ratios equal to the surviving mass",
        &[Check("distribution.support"), Check("lag.support")],
    ),
    case(
        Numbers,
        "huggingface/trl#7269",
        "trainer over the whole vocabulary, sampler over the kept ids",
        &[Check("lag.support"), Check("distribution.agreement")],
    ),
    case(
        Numbers,
        "huggingface/trl#4159",
        "temperature missing in the sampler's log-probs",
        &[Check("distribution.temperature"), Check("lag.temperature")],
    ),
    case(
        Numbers,
        "GMISWE/tinker-cloud#26",
        "trainer tempered where it must not be",
        &[Check("distribution.agreement"), Check("lag.temperature")],
    ),
    case(
        Numbers,
        "sgl-project/sglang#36630",
        "mask rebuilt from probabilities; ties, filter order, greedy",
        &[
            Check("distribution.support"),
            Check("distribution.filters"),
            Check("distribution.ties"),
            Check("distribution.greedy"),
        ],
    ),
    case(
        Numbers,
        "Biohub/esm#360",
        "token at which the nucleus crosses top_p dropped",
        &[Check("distribution.support"), Test("tests/tests/golden/main.rs", "every_vector_holds")],
    ),
    case(
        Numbers,
        "NVIDIA-NeMo/RL#4154",
        "recomputed nucleus without the sampled token",
        &[Check("lag.support"), Check("distribution.support")],
    ),
    case(
        Numbers,
        "NVIDIA-NeMo/RL#3497",
        "filters taken from generation_config.json",
        &[Check("distribution.defaults")],
    ),
    case(
        Numbers,
        "huggingface/trl async_grpo",
        "request without top_p, top_k, min_p",
        &[Check("distribution.defaults"), Test("adapters/tests/wire/encoding.rs", "every_sampling_field_is_sent")],
    ),
    case(
        Numbers,
        "PrimeIntellect-ai/prime-rl#886",
        "repetition penalty applied in silence",
        &[Check("distribution.agreement"), Test("adapters/tests/wire/encoding.rs", "every_sampling_field_is_sent")],
    ),
    case(
        Numbers,
        "modelscope/ms-swift#8442",
        "defaults that truncate while importance sampling is on",
        &[Check("distribution.defaults"), Check("lag.support")],
    ),
    case(
        Numbers,
        "THUDM/slime#2319",
        "log-probs of the prompt ignore the temperature",
        &[Check("lag.temperature"), Check("distribution.temperature")],
    ),
    case(
        Numbers,
        "vllm-project/vime#70",
        "missing log-probs padded with 0.0",
        &[Check("distribution.support"), Test(BROKEN, "a_broken_vllm_reply_is_refused_with_position_and_value")],
    ),
    case(
        Numbers,
        "NVIDIA/TensorRT-LLM#18190",
        "stop tokens trimmed from ids and not from log-probs",
        &[Check("tokens.ends")],
    ),
    case(
        Numbers,
        "fw-ai/cookbook#483",
        "log-probs shifted against ids",
        &[Check("distribution.agreement"), Test(BROKEN, "a_broken_vllm_reply_is_refused_with_position_and_value")],
    ),
    case(
        Numbers,
        "AI-Hypercomputer/maxtext#5231",
        "log-probs above 0 from bf16 logits",
        &[
            Check("numeric.size"),
            Check("numeric.bias"),
            Test(BROKEN, "a_broken_mask_is_refused_with_position_and_value"),
        ],
    ),
    case(
        Numbers,
        "THUDM/slime#179",
        "ratio of the current policy where that of the old one is meant",
        &[Check("lag.denominator"), Check("correction.weights")],
    ),
    case(Numbers, "inclusionAI/AReaL#201", "denominator recomputed, every ratio 1", &[Check("lag.zero")]),
    case(
        Numbers,
        "radixark/miles#1829",
        "denominator recomputed by the current actor, staleness ignored",
        &[Check("lag.zero"), Check("correction.weights")],
    ),
    case(
        Numbers,
        "huggingface/trl#5231",
        "metrics of ratios after the clip",
        &[Check("correction.ess"), Check("lag.denominator")],
    ),
    case(
        Numbers,
        "vllm-project/vime policy-mismatch.md",
        "score means that are not centred; truncated and masked weights",
        &[Check("correction.drift"), Test("tests/tests/golden/main.rs", "every_vector_holds")],
    ),
    case(
        Numbers,
        "verl-project/verl#4252",
        "tempered against untempered log-probs",
        &[Check("lag.temperature"), Check("distribution.agreement")],
    ),
    case(
        Template,
        "rllm-org/rllm#272",
        "the same text, other ids",
        &[
            Check("tokens.identity"),
            Test("tests/tests/session/decoding.rs", "sampled_ids_drift_when_their_text_is_encoded"),
        ],
    ),
    case(Template, "huggingface/trl#5224", "a tool loop decodes and encodes again", &[Check("tokens.identity")]),
    case(
        Template,
        "PrimeIntellect-ai/prime-rl#1334",
        "empty think block inserted and removed",
        &[Check("tokens.template"), Test(TURNS, "an_empty_think_block_is_neither_written_nor_removed")],
    ),
    case(
        Template,
        "verl-project/verl#6501",
        "new line after the end of a turn lost",
        &[Check("tokens.template"), Check("tokens.identity"), Test(TURNS, "the_new_line_after_a_turns_end_is_there")],
    ),
    case(
        Template,
        "NVIDIA-NeMo/labs-molt#20",
        "what is new cut out by length from a rewritten history",
        &[Check("tokens.template"), Test(TURNS, "what_is_new_is_never_cut_out_by_length")],
    ),
    case(
        Template,
        "THUDM/slime#2213",
        "opened think block missing in the history; merge across the seam",
        &[
            Check("tokens.template"),
            Check("tokens.identity"),
            Check("numeric.turns"),
            Test(TURNS, "a_seam_never_merges"),
        ],
    ),
    case(
        Template,
        "huggingface/trl#6361",
        "thinking written outside of its block",
        &[Check("tokens.template"), Test("tests/tests/session/analysis.rs", "every_fault_is_named")],
    ),
    case(
        Template,
        "verl-project/verl#6854",
        "thinking stripped from the history",
        &[
            Check("tokens.template"),
            Test("tests/tests/session/histories.rs", "stripped_thinking_is_kept_or_forked_by_policy"),
        ],
    ),
    case(
        Template,
        "smg-project/smg#1836",
        "arguments of tool calls serialised anew",
        &[
            Test(TURNS, "the_spaces_of_sampled_json_stay"),
            Test("tests/tests/session/analysis.rs", "every_fault_is_named"),
        ],
    ),
    case(
        Template,
        "ai-dynamo/dynamo#8630",
        "ids rebuilt from bytes",
        &[Check("tokens.identity"), Check("tokens.vocabulary"), Test(TURNS, "ids_of_broken_characters_stay_apart")],
    ),
    case(
        Template,
        "NVIDIA-NeMo/Gym#1787",
        "tool turns that are not contiguous",
        &[Check("tokens.template"), Test(TURNS, "forty_eight_tool_turns_are_contiguous")],
    ),
    case(
        Template,
        "microsoft/agent-lightning#44",
        "a reply without ids, encoded again",
        &[Check("tokens.identity"), Test(TURNS, "an_answer_without_ids_is_refused")],
    ),
    case(
        Template,
        "verl-project/verl#2165",
        "benign and real differences not told apart",
        &[Check("tokens.template"), Test("tests/tests/session/drifting.rs", "every_difference_has_its_kind")],
    ),
    case(
        Asynchrony,
        "THUDM/slime#2092",
        "aborted answers resumed under other weights",
        &[Check("batch.membership"), Check("version.evidence"), Check("version.update")],
    ),
    case(
        Asynchrony,
        "inclusionAI/AReaL#1569",
        "version read after the reply",
        &[Check("version.update"), Check("version.evidence")],
    ),
    case(
        Asynchrony,
        "NVIDIA-NeMo/labs-molt#124",
        "an answer that spans a refit",
        &[Check("version.update"), Check("version.repeat")],
    ),
    case(
        Asynchrony,
        "thinking-machines-lab/tinker-cookbook#822",
        "what is slow is discarded and asked again",
        &[Check("batch.membership")],
    ),
    case(
        Asynchrony,
        "NVIDIA-NeMo/RL#3665",
        "the slowest rows are evicted",
        &[Check("batch.membership"), Check("batch.outcomes")],
    ),
    case(
        Asynchrony,
        "PrimeIntellect-ai/prime-rl#2960",
        "a whole group cancelled when one member ages",
        &[Check("batch.membership"), Check("version.update")],
    ),
    case(Asynchrony, "verl-project/verl-recipe#125", "groups filtered by a shaped reward", &[Check("batch.outcomes")]),
    case(
        Asynchrony,
        "areal-project/AReaL#450",
        "filtered groups refilled or not",
        &[Check("batch.outcomes"), Check("batch.denominator")],
    ),
    case(Asynchrony, "sgl-project/sglang#11673", "tokens lost at an abort", &[Check("tokens.ends")]),
    case(
        Asynchrony,
        "vllm-project/vllm#54443",
        "labels of admission, first token, or now; undeclared taken for version 0",
        &[Check("version.evidence"), Check("version.update")],
    ),
    case(
        Asynchrony,
        "GMISWE/tinker-cloud#32",
        "a label that its greedy log-probs do not prove",
        &[Check("version.evidence"), Check("version.repeat")],
    ),
    case(
        Asynchrony,
        "marin-community/marin#8955",
        "a collapse that the token ESS does not foretell",
        &[
            Check("correction.ess"),
            Test("tests/tests/experiment.rs", "an_experiment_is_the_same_twice_and_goes_on_where_it_was_broken_off"),
        ],
    ),
];

/// The table: report, fault, what covers it.
pub fn table() -> String {
    let mut out = String::from("| report | fault | covered by |\n|---|---|---|\n");
    for case in &ALL {
        let cover = |cover: &Cover| match cover {
            Check(id) => format!("`{id}`"),
            Test(file, test) => format!("`{test}` in `{file}`"),
        };
        let covers: Vec<String> = case.covers.iter().map(cover).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| {} | {} | {} |", case.report, case.fault, covers.join(", "));
    }
    out
}
