//! Each way to break a reply, beside the honest reply that passes. The error names the position and the value.

use crate::replies::*;
use lockstep_adapters::vllm::Form;
use serde_json::{Value, json};

/// A place in a reply, what is put there (null takes the place away in a list), and what the error says.
type Breakage = (&'static str, Value, &'static str);

fn broken(honest: &Value, breakage: &Breakage) -> Value {
    let (place, value, _) = breakage;
    let mut reply = honest.clone();
    let (list, last) = place.rsplit_once('/').unwrap();
    match (reply.pointer_mut(list).unwrap(), value) {
        (Value::Array(list), Value::String(word)) if word == "gone" => drop(list.remove(last.parse().unwrap())),
        (Value::Array(list), value) if last == "+" => list.push(value.clone()),
        (Value::Object(fields), Value::String(word)) if word == "gone" => drop(fields.remove(last)),
        (other, value) => *other.pointer_mut(&format!("/{last}")).unwrap() = value.clone(),
    }
    reply
}

fn each<T: std::fmt::Debug>(
    honest: &Value,
    parse: impl Fn(&Value) -> Result<T, lockstep_adapters::WireError>,
    table: &[Breakage],
) {
    parse(honest).unwrap();
    for breakage in table {
        let error = parse(&broken(honest, breakage)).unwrap_err().to_string();
        assert!(error.contains(breakage.2), "{}: {error}", breakage.0);
    }
}

const VLLM: &str = "/choices/0/logprobs/content";

#[test]
fn a_broken_vllm_reply_is_refused_with_position_and_value() {
    let at = |place: &str| -> &'static str { Box::leak(format!("{VLLM}{place}").into_boxed_str()) };
    let own = at("/3/logprob");
    each(
        &reply("vllm_processed_logprobs_generate_tokens"),
        |value| vllm(Form::Processed, NUCLEUS, value),
        &[
            (own, json!(-9999.0), "at position 3: the log-prob of token 74129 is -9999.0"),
            (own, json!(null), "at position 3: the log-prob of token 74129 is null"),
            (own, json!("NaN"), "at position 3: the log-prob of token 74129 is NaN"),
            (own, json!(0.03), "at position 3: the log-prob of token 74129 is 0.03, not a finite number <= 0"),
            (own, json!("gone"), "at position 3: the log-prob of token 74129 is missing"),
            // A missing log-prob that was padded with 0, probability 1.
            (own, json!(0.0), "at position 3: token 74129 has log-prob 0, but -0.5321559309959412"),
            (at("/3"), json!("gone"), "from position 0: 5 log-prob rows for 6 tokens"),
            ("/choices/0/token_ids/5", json!("gone"), "from position 0: 6 log-prob rows for 5 tokens"),
            ("/choices/0/token_ids/2", json!(null), "at position 2: token id is null, which is no token id"),
            (
                "/choices/0/token_ids/2",
                json!(74552),
                "at position 2: token 74552 was drawn, but the row is about token 74551",
            ),
            (at("/3/token_id"), json!(null), "at position 3: log-prob row's id is missing"),
            (at("/0/top_logprobs/1/token_id"), json!(51859), "at position 0: token 51859 stands twice"),
            (at("/0/top_logprobs/1"), json!("gone"), "at position 0: known mass 0.54"),
            (at("/0/top_logprobs/1/logprob"), json!(-0.9), "at position 0: known mass"),
            (at("/0/top_logprobs/2/logprob"), json!(1e-3), "at position 0: the top log-prob of token 81458 is 0.001"),
            (at("/0/top_logprobs/2/logprob"), json!(null), "at position 0: the top log-prob of token 81458 is null"),
            (
                at("/0/top_logprobs/2/token_id"),
                json!(151_936),
                "at position 0: token 151936 is outside the vocabulary of 151936",
            ),
            ("/choices/0/logprobs", json!(null), "no choices[0].logprobs"),
            ("/choices/0/token_ids", json!(null), "no choices[0].token_ids"),
            ("/choices/0/finish_reason", json!("tired"), "finish reason \"tired\", which is not known"),
        ],
    );
}

#[test]
fn words_that_are_no_json_are_named_where_they_stand() {
    let honest = reply("vllm_processed_logprobs_generate_tokens").to_string();
    let parse = |text: &str| {
        let route = lockstep_adapters::vllm::Route::Generate;
        lockstep_adapters::vllm::Parser::new(asked(NUCLEUS, 64), route, Form::Processed).parse(text.as_bytes())
    };
    parse(&honest).unwrap();
    for word in ["NaN", "-Infinity"] {
        let text = honest.replacen("\"logprob\":-0.5321559309959412", &format!("\"logprob\":{word}"), 1);
        assert_ne!(text, honest);
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("at position 3: the log-prob of token 74129 is {word}")), "{error}");
    }
}

#[test]
fn raw_log_probs_are_not_taken_for_processed_ones() {
    let mut raw = reply("vllm_processed_logprobs_generate_tokens");
    // As a server without --logprobs-mode processed_logprobs lists them: every entry finite, no end in sight.
    for row in raw.pointer_mut(VLLM).unwrap().as_array_mut().unwrap() {
        for entry in row["top_logprobs"].as_array_mut().unwrap() {
            let value = entry["logprob"].as_f64().unwrap();
            entry["logprob"] = json!(if value == -9999.0 { -9.0 } else { value - 0.22 });
        }
        row["logprob"] = row["top_logprobs"][0]["logprob"].clone();
    }
    let error = vllm(Form::Processed, NUCLEUS, &raw).unwrap_err().to_string();
    assert!(error.starts_with("at position 0: 12 ids carry mass 0.80"), "{error}");
    // Observed, it is a head of the whole vocabulary: what it claims, not what was drawn.
    let observed = vllm(Form::Raw, NUCLEUS, &raw).unwrap();
    assert!(observed.rows.iter().all(|row| row.log_rest().is_some()));
}

#[test]
fn a_broken_mask_is_refused_with_position_and_value() {
    let mask = "/choices/0/sampling_mask";
    let at = |place: &str| -> &'static str { Box::leak(format!("{mask}{place}").into_boxed_str()) };
    each(
        &reply("synthetic_vllm_sampling_mask"),
        masked,
        &[
            (at("/0/0"), json!("gone"), "at position 0: token 7 is outside its support (2 ids)"),
            (at("/0/1"), json!(7), "at position 0: token 11 is outside its support"),
            (at("/1/4"), json!("gone"), "at position 1: known mass 0.899"),
            (at("/1/4"), json!(90), "at position 1: token 90 stands twice"),
            (at("/1/4"), json!(200_000), "at position 1: token 200000 is outside the vocabulary of 151936"),
            (at("/1/4"), json!(-1), "at position 1: id of the mask is -1.0, which is no token id"),
            (at("/1"), json!("gone"), "from position 0: 2 sampling masks for 3 tokens"),
            (mask, json!(null), "no choices[0].sampling_mask: start vLLM with --return-sampling-mask"),
        ],
    );
}

#[test]
fn a_mask_with_an_id_too_many_is_seen_where_its_log_probs_are_listed() {
    let mut reply = reply("synthetic_vllm_sampling_mask");
    reply["choices"][0]["token_ids"] = json!([11]);
    for list in ["/choices/0/sampling_mask", VLLM] {
        reply.pointer_mut(list).unwrap().as_array_mut().unwrap().truncate(1);
    }
    let parse = |value: &Value| vllm(Form::Mask, TOP_8, value);
    parse(&reply).unwrap();
    let longer = broken(&reply, &("/choices/0/sampling_mask/0/+", json!(41), ""));
    let error = parse(&longer).unwrap_err().to_string();
    assert_eq!(error, "at position 0: the mask keeps 4 ids, but 3 have a log-prob, though there was room for 4");
}

#[test]
fn a_broken_sglang_reply_is_refused_with_position_and_value() {
    each(
        &reply("synthetic_sglang_sampling_mask"),
        sglang,
        &[
            // The mask was rebuilt and the drawn token added to it: its log-probs no longer add up.
            ("/meta_info/output_token_sampling_logprobs/1/0", json!(-1.2), "at position 1: known mass 0.80"),
            (
                "/meta_info/output_token_sampling_mask/1/1",
                json!(91),
                "at position 1: token 90 is outside its support (3 ids)",
            ),
            ("/meta_info/output_token_sampling_mask/1/2", json!("gone"), "at position 1: 3 log-probs for 2 ids"),
            (
                "/meta_info/output_token_sampling_logprobs/1/2",
                json!("NaN"),
                "at position 1: the sampling log-prob of token 6 is NaN",
            ),
            (
                "/meta_info/output_token_sampling_logprobs/2/0",
                json!(0.125),
                "at position 2: the sampling log-prob of token 3 is 0.125",
            ),
            ("/meta_info/output_token_sampling_logprobs/1", json!(-0.4), "one value a token is not the support"),
            ("/meta_info/output_token_sampling_mask", json!("gone"), "no output_token_sampling_mask"),
            // A stop token trimmed from the ids, and not from the log-probs.
            ("/output_ids/2", json!("gone"), "chunk starts at token 1, but 0 tokens are there"),
            (
                "/meta_info/output_token_logprobs/2",
                json!("gone"),
                "from position 0: 2 output_token_logprobs for 3 tokens",
            ),
            // An id left out, and its log-prob not: everything after it is shifted.
            ("/output_ids/1", json!(null), "at position 1: output id is null, which is no token id"),
            (
                "/meta_info/output_token_logprobs/1/1",
                json!(3),
                "at position 1: token 90 was drawn, but the row is about token 3",
            ),
            ("/meta_info/completion_tokens", json!("gone"), "no meta_info.completion_tokens"),
            ("/output_ids", json!("gone"), "no output_ids"),
        ],
    );
}

#[test]
fn a_broken_llama_reply_is_refused_with_position_and_value() {
    let rows = "/completion_probabilities";
    let at = |place: &str| -> &'static str { Box::leak(format!("{rows}{place}").into_boxed_str()) };
    each(
        &ours(reply("llamacpp_post_sampling_probs_temperature_first")),
        llama,
        &[
            (at("/2/prob"), json!(0.0), "at position 2: the probability of token 74551 is 0.0, not a number in (0, 1]"),
            (at("/2/prob"), json!(null), "no completion_probabilities[].prob"),
            (at("/2/prob"), json!(1.25), "at position 2: the probability of token 74551 is 1.25"),
            (at("/2/prob"), json!(0.5), "at position 2: token 74551 has log-prob"),
            (at("/2/top_probs/0"), json!("gone"), "at position 2: known mass 0.26"),
            (at("/2/top_probs/1/id"), json!(20752), "at position 2: token 20752 stands twice"),
            (at("/2/id"), json!(74552), "at position 2: token 74551 was drawn, but the row is about token 74552"),
            ("/generation_settings/top_p", json!(0.95), "top_p was asked as 0.8, the engine used 0.95"),
            ("/generation_settings/min_p", json!("gone"), "min_p was asked as 0.0, the engine used nothing it echoes"),
            ("/generation_settings", json!("gone"), "no generation_settings"),
            ("/tokens", json!("gone"), "no tokens"),
            ("/stop_type", json!("word"), "finish reason \"word\", which is not known"),
        ],
    );
}
