//! What real replies say.

use crate::replies::*;
use lockstep_adapters::{End, vllm::Form};
use lockstep_core::support::Domain;
use serde_json::{Value, json};

#[test]
fn a_vllm_reply_gives_ids_supports_and_a_label() {
    let chunk = vllm(Form::Processed, NUCLEUS, &reply("vllm_processed_logprobs_generate_tokens")).unwrap();
    assert_eq!(ids(&chunk.rows), [51859, 84648, 74551, 74129, 51343, 37130]);
    assert_eq!(sizes(&chunk.rows), [7, 5, 1, 4, 2, 1]);
    let first = &chunk.rows[0];
    assert_eq!(
        first.ids().iter().map(|id| id.0).collect::<Vec<_>>(),
        [51859, 32867, 81458, 30522, 110989, 36213, 126605]
    );
    assert!((first.log_q()[1] + 0.7881200909614563).abs() < 1e-15);
    // A decimal number is read back within one unit of its last place.
    assert!((first.sampled().log_q + 1.2544591426849365).abs() < 1e-15);
    assert!(first.is_exact());
    let versions = chunk.versions.unwrap();
    assert_eq!((versions[0].version.as_str(), versions[0].start, versions[0].end), ("default", 0, 6));
    assert_eq!(chunk.end, Some(End::Length));
}

#[test]
fn a_smaller_head_keeps_the_other_ids_as_mass() {
    let value = reply("vllm_processed_logprobs_generate_tokens");
    let mut parser = lockstep_adapters::vllm::Parser::new(
        asked(NUCLEUS, 2),
        lockstep_adapters::vllm::Route::Generate,
        Form::Processed,
    );
    let first = parser.parse(&bytes(&value)).unwrap().rows.remove(0);
    assert_eq!((first.known(), first.ids().len(), first.domain()), (2, 7, Domain::Listed));
    let known: f64 = first.log_q().iter().map(|log_q| log_q.exp()).sum();
    assert!((known + first.log_rest().unwrap().exp() - 1.0).abs() < 1e-6);
}

#[test]
fn an_aborted_vllm_reply_is_no_finished_answer_and_one_log_prob_is_no_support() {
    let mut value = reply("vllm_processed_logprobs_abort_partial");
    // The capture breaks its list off with a text.
    assert!(vllm(Form::Processed, NUCLEUS, &value).unwrap_err().to_string().contains("cannot be read"));
    let choice = &mut value["choices"][0];
    choice["logprobs"]["content"].as_array_mut().unwrap().truncate(3);
    let refused = vllm(Form::Processed, NUCLEUS, &json!({ "choices": [choice.clone()] })).unwrap_err();
    assert_eq!(refused.to_string(), "from position 0: 3 log-prob rows for 45 tokens");
    choice["token_ids"].as_array_mut().unwrap().truncate(3);
    let refused = vllm(Form::Processed, NUCLEUS, &json!({ "choices": [choice.clone()] })).unwrap_err().to_string();
    assert!(refused.starts_with("at position 0: 1 ids carry mass 0.28"), "{refused}");
    for list in ["token_ids", "logprobs"] {
        let list = if list == "logprobs" { &mut choice["logprobs"]["content"] } else { &mut choice[list] };
        list.as_array_mut().unwrap().drain(..2);
    }
    let chunk = vllm(Form::Processed, NUCLEUS, &json!({ "choices": [choice.clone()] })).unwrap();
    assert_eq!((ids(&chunk.rows), sizes(&chunk.rows)), (vec![74551], vec![1]));
    assert!(matches!(chunk.end, Some(End::Aborted(_))));
}

#[test]
fn replies_without_ids_or_about_texts_are_refused() {
    let text = completions(&reply("vllm_processed_logprobs_v1_completions_return_token_ids")).unwrap_err().to_string();
    assert!(text.starts_with("at position 0: log-prob row's id is the text \" grp\""), "{text}");
    let mut named = reply("vllm_processed_logprobs_v1_completions_tokens_as_ids");
    assert!(completions(&named).unwrap_err().to_string().contains("no choices[0].token_ids"));
    named["choices"][0]["token_ids"] = json!([51859, 84648]);
    let short = completions(&named).unwrap_err().to_string();
    assert!(short.starts_with("at position 0: 3 ids carry mass 0.80"), "{short}");
    let top = json!([{ "token_id:51859": 0.25f64.ln(), "token_id:7": 0.75f64.ln(), "token_id:8": -9999.0 }, null]);
    named["choices"][0]["logprobs"]["top_logprobs"] = top;
    named["choices"][0]["logprobs"]["token_logprobs"] = json!([0.25f64.ln(), 0.0]);
    let second = completions(&named).unwrap_err().to_string();
    assert!(second.starts_with("at position 1: 0 ids carry mass 0"), "{second}");
    named["choices"][0]["logprobs"]["top_logprobs"][1] = json!({ "token_id:84648": 0.0 });
    assert_eq!(sizes(&completions(&named).unwrap().rows), [2, 1]);
}

#[test]
fn replies_of_other_routes_are_refused() {
    for (name, what) in [
        ("vllm_prompt_logprobs", "no choices[0].logprobs"),
        ("vllm_processed_logprobs_weight_checksum", "no choices"),
        ("vllm_processed_logprobs_update_weight_version", "no choices"),
    ] {
        let refused = vllm(Form::Processed, NUCLEUS, &reply(name)).unwrap_err().to_string();
        assert!(refused.contains(what), "{name}: {refused}");
    }
}

#[test]
fn a_mask_gives_exact_ids_known_log_probs_and_the_mass_of_the_others() {
    let chunk = masked(&reply("synthetic_vllm_sampling_mask")).unwrap();
    assert_eq!((ids(&chunk.rows), sizes(&chunk.rows)), (vec![11, 90, 3], vec![3, 5, 1]));
    let partly = &chunk.rows[1];
    assert_eq!((partly.known(), partly.domain()), (3, Domain::Listed));
    assert!((partly.log_rest().unwrap().exp() - 0.2).abs() < 1e-8);
    assert!((partly.sampled().log_q - 0.1f64.ln()).abs() < 1e-8);
    assert_eq!(chunk.versions.unwrap().len(), 2);
}

#[test]
fn an_sglang_reply_gives_the_kept_ids_with_their_log_probs() {
    let chunk = sglang(&reply("synthetic_sglang_sampling_mask")).unwrap();
    assert_eq!((ids(&chunk.rows), sizes(&chunk.rows)), (vec![11, 90, 3], vec![3, 3, 1]));
    assert!((chunk.rows[1].sampled().log_q - 0.3f64.ln()).abs() < 1e-8);
    assert_eq!((chunk.end, chunk.versions.unwrap().len()), (Some(End::Stop), 2));
}

#[test]
fn a_llama_reply_gives_supports_in_the_order_temperature_first() {
    let drawn = llama(&ours(reply("llamacpp_post_sampling_probs_temperature_first"))).unwrap();
    let rows: Vec<_> = drawn.rows.into_iter().map(Option::unwrap).collect();
    assert_eq!(ids(&rows), [32867, 144970, 74551, 38919]);
    assert_eq!(sizes(&rows), [7, 6, 2, 1]);
    assert_eq!(rows[2].sampled().log_q, 0.26857632398605347f64.ln());
    assert_eq!(drawn.end, End::Length);
}

#[test]
fn a_llama_reply_with_other_settings_than_asked_is_refused() {
    let first = reply("llamacpp_post_sampling_probs_temperature_first");
    let refused = |value: &Value| llama(value).unwrap_err().to_string();
    assert_eq!(refused(&first), "ignore_eos was asked as false, the engine used true");
    let default = refused(&ours(reply("llamacpp_post_sampling_probs_default_chain")));
    assert!(default.starts_with("samplers was asked as [\"temperature\",\"top_k\",\"top_p\",\"min_p\"]"), "{default}");
    let mut raw = ours(reply("llamacpp_pre_sampling_logprobs"));
    raw["generation_settings"]["samplers"] = json!(lockstep_adapters::llama_cpp::SAMPLERS);
    assert_eq!(refused(&raw), "post_sampling_probs was asked as true, the engine used false");
    raw["generation_settings"]["post_sampling_probs"] = json!(true);
    assert!(refused(&raw).contains("no completion_probabilities[].prob"), "{}", refused(&raw));
    let mut warm = ours(first);
    warm["generation_settings"]["repeat_penalty"] = json!(1.05);
    assert_eq!(refused(&warm), "repeat_penalty was asked as 1.0, the engine used 1.05");
}

#[test]
fn a_token_whose_row_is_missing_is_seen_and_found_in_a_second_draw() {
    let mut value = ours(reply("llamacpp_post_sampling_probs_temperature_first"));
    value["completion_probabilities"].as_array_mut().unwrap().remove(1);
    let drawn = llama(&value).unwrap();
    assert_eq!(drawn.rows.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true, true]);
    let leg = lockstep_adapters::llama_cpp::Leg { tokens: 1, attempt: 1, ..LEG };
    let parser = lockstep_adapters::llama_cpp::Parser::new(&request(NUCLEUS, 64), &leg, VOCABULARY);
    let mut second = ours(reply("llamacpp_post_sampling_probs_temperature_first"));
    let body = lockstep_adapters::llama_cpp::encode(&request(NUCLEUS, 64), &leg).unwrap();
    for field in ["seed", "n_predict"] {
        second["generation_settings"][field] = body[field].clone();
    }
    let other = lockstep_core::TokenId(51859);
    let found = parser.support_elsewhere(&bytes(&second), other).unwrap().unwrap();
    assert_eq!((found.sampled().token, found.sampled().log_q), (other, 0.28522777557373047f64.ln()));
    let outside = parser.support_elsewhere(&bytes(&second), lockstep_core::TokenId(5)).unwrap_err();
    assert_eq!(outside.to_string(), "at position 0: token 5 is outside its support (7 ids)");
}
