//! A whole reply of `/v1/completions`, as it says it drew.

use super::{
    VOCABULARY,
    texts::{END, Texts},
};
use crate::json::shortened;
use lockstep_core::{
    FinishReason, Support, TokenId,
    support::{Domain, Reported, Sampled},
};
use serde_json::Value;

/// Mass that listed log-probs may lack and still be taken for all of it.
const WHOLE: f64 = 1e-4;

/// The tokens of a reply and why it ended.
///
/// # Errors
/// What is missing, or contradicts itself, with its position.
pub fn parse(body: &[u8], texts: &mut Texts) -> Result<(Vec<Support>, FinishReason), String> {
    let reply: Value = serde_json::from_slice(body).map_err(|error| format!("the reply is no JSON: {error}"))?;
    let choice = &reply["choices"][0];
    let list = |name: &str| choice["logprobs"][name].as_array().map(Vec::as_slice);
    let said = || shortened(&reply.to_string());
    let tokens = list("tokens").ok_or_else(|| format!("the reply has no logprobs.tokens: {}", said()))?;
    let log_probs = list("token_logprobs").ok_or("the reply has no logprobs.token_logprobs")?;
    let tops = list("top_logprobs").ok_or("the reply has no logprobs.top_logprobs")?;
    if tokens.len() != log_probs.len() || tokens.len() != tops.len() {
        let (a, b, c) = (tokens.len(), log_probs.len(), tops.len());
        return Err(format!("{a} tokens have {b} log-probs and {c} lists of alternatives"));
    }
    let rows = tokens.iter().zip(log_probs).zip(tops).enumerate();
    let row = |(at, ((token, own), top))| row((token, own), top, texts).map_err(|why| format!("token {at}: {why}"));
    let supports = rows.map(row).collect::<Result<Vec<Support>, String>>()?;
    match choice["finish_reason"].as_str() {
        Some("length") => Ok((supports, FinishReason::Length)),
        Some("stop") => Ok((supports, FinishReason::Stop(END))),
        other => Err(format!("finish_reason is {other:?}")),
    }
}

fn row((token, own): (&Value, &Value), top: &Value, texts: &mut Texts) -> Result<Support, String> {
    let token = texts.number(token.as_str().ok_or("its text is missing")?);
    let log_q = own.as_f64().ok_or("its log-prob is missing")?.min(0.0);
    let listed = top.as_object().ok_or("its alternatives are missing")?;
    let mut entries: Vec<(TokenId, f64)> = Vec::new();
    for (text, value) in listed {
        let value = value.as_f64().ok_or_else(|| format!("alternative {text:?} has no log-prob"))?;
        entries.push((texts.number(text), value.min(0.0)));
    }
    if !entries.iter().any(|&(id, _)| id == token) {
        entries.push((token, log_q));
    }
    entries.sort_unstable_by_key(|&(id, _)| id);
    let mass: f64 = entries.iter().map(|(_, log_q)| log_q.exp()).sum();
    let (ids, log_q_of): (Vec<TokenId>, Vec<f64>) = entries.into_iter().unzip();
    if mass > 1.0 - WHOLE {
        return Support::exact(token, ids, log_q_of).map_err(|error| error.to_string());
    }
    let reported =
        Reported { ids, log_q: log_q_of, log_rest: Some((1.0 - mass).ln()), domain: Domain::Vocabulary(VOCABULARY) };
    Support::new(Sampled { token, log_q }, reported).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replies of `python -m llama_cpp.server` 0.3.36 to one prompt, top_p 0.9, at temperatures 0.5 and 2.
    const RECORDED: [&str; 2] = [
        r#"{"choices":[{"text":"渴望 symptom","index":0,"logprobs":{"text_offset":[6,8],"token_logprobs":[-0.9938177466392517,-2.312321186065674],"tokens":["渴望"," symptom"],"top_logprobs":[{"渴望":-0.9938177466392517," userinfo":-2.1382193565368652,"GRAPH":-2.2652316093444824," schön":-2.576230525970459},{"Have":-1.5763667821884155,"VERRIDE":-1.728796362876892," symptom":-2.312321186065674,"/wiki":-2.7365574836730957}]},"finish_reason":"length"}]}"#,
        r#"{"choices":[{"text":"渴望Wik","index":0,"logprobs":{"text_offset":[6,8],"token_logprobs":[-0.993817925453186,-5.104908466339111],"tokens":["渴望","Wik"],"top_logprobs":[{"渴望":-0.993817925453186," userinfo":-2.1382174491882324,"GRAPH":-2.2652335166931152," schön":-2.576230525970459},{"Have":-1.5763667821884155,"VERRIDE":-1.728796362876892," symptom":-2.312321186065674,"/wiki":-2.7365574836730957,"Wik":-5.104908466339111}]},"finish_reason":"length"}]}"#,
    ];

    #[test]
    fn a_recorded_reply_is_read_as_it_says_it_drew() {
        let mut texts = Texts::default();
        let [half, two] = RECORDED.map(|reply| parse(reply.as_bytes(), &mut texts).unwrap());
        assert_eq!((half.1, half.0.len(), two.0.len()), (FinishReason::Length, 2, 2));
        // The same at both temperatures, over the whole vocabulary under top_p: raw.
        assert!((half.0[0].sampled().log_q - two.0[0].sampled().log_q).abs() < 1e-5);
        assert_eq!(half.0[0].domain(), Domain::Vocabulary(VOCABULARY));
        assert_eq!(two.0[1].sampled().token, texts.number("Wik"));
    }

    #[test]
    fn a_reply_that_lacks_something_is_refused_with_its_position() {
        let broken = [
            ("\"tokens\":[\"渴望\",", "\"tokens\":[", "1 tokens have 2 log-probs and 2 lists of alternatives"),
            ("[-0.9938177466392517,", "[null,", "token 0: its log-prob is missing"),
            ("\"length\"", "\"abort\"", "finish_reason is Some(\"abort\")"),
            ("\"GRAPH\":-2.2652316093444824", "\"GRAPH\":-0.1", "token 0: known mass"),
        ];
        for (from, to, why) in broken {
            let reply = RECORDED[0].replacen(from, to, 1);
            assert_ne!(reply, RECORDED[0]);
            let refused = parse(reply.as_bytes(), &mut Texts::default()).unwrap_err();
            assert!(refused.starts_with(why), "{refused}");
        }
    }
}
