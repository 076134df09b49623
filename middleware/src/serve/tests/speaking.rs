//! Text routes with a model whose tokens are letters: how answers end, and what of a conversation is durable.

use super::{engine::Fake, gateway, send};
use crate::{
    ledger::{self, Record},
    serve::{
        Gateway, Options,
        refusal::Refusal,
        restore,
        text::{Conversation, Decode, Parse, Piece, Talk, Text},
    },
    session::SessionRecord,
};
use lockstep_core::{FinishReason, TokenId};
use serde_json::{Value, json};
use std::{path::Path, sync::Arc};

/// Token n is the n-th letter of the alphabet, counted from 10, where the engine counts from.
struct Letters;

fn letter(id: TokenId) -> String {
    char::from_u32(u32::from('a') + id.0 - 10).map(String::from).unwrap_or_default()
}

impl Decode for Letters {
    fn push(&mut self, id: TokenId) -> Result<String, Refusal> {
        Ok(letter(id))
    }

    fn finish(&mut self) -> Result<String, Refusal> {
        Ok(String::new())
    }
}

impl Parse for Letters {
    fn push(&mut self, text: &str) -> Vec<Piece> {
        vec![Piece::Content(text.to_owned())]
    }

    fn finish(&mut self) -> Vec<Piece> {
        Vec::new()
    }
}

impl Talk for Letters {
    fn prompt(&self) -> &[TokenId] {
        &[TokenId(1)]
    }

    fn parser(&self) -> Box<dyn Parse> {
        Box::new(Self)
    }

    fn commit(&self, sampled: Vec<TokenId>, finish: FinishReason, shown: Value) -> Result<SessionRecord, Refusal> {
        let (session, tools, messages) = ("s".to_owned(), "[]".to_owned(), shown.to_string());
        Ok(SessionRecord { session, branch: 0, turn: 0, tools, messages, observed: vec![TokenId(1)], sampled, finish })
    }
}

impl Text for Letters {
    fn stop_ids(&self) -> Vec<TokenId> {
        vec![TokenId(99)]
    }

    fn encode(&self, _: &str) -> Result<Vec<TokenId>, Refusal> {
        Ok(vec![TokenId(1)])
    }

    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(Self)
    }

    fn shown(&self, id: TokenId) -> String {
        letter(id)
    }

    fn turn(&self, _: &Conversation) -> Result<Box<dyn Talk>, Refusal> {
        Ok(Box::new(Self))
    }
}

fn speaking(directory: &Path) -> Arc<Gateway> {
    let found = restore(directory, &Options::default()).unwrap();
    let gateway = gateway(vec![Fake::counting()]).capturing(found.capture, found.plans, found.loose);
    Arc::new(gateway.speaking(Arc::new(Letters)))
}

fn finishes(directory: &Path) -> Vec<FinishReason> {
    let records = ledger::read(directory).unwrap();
    let finish = |record: &Record| match record {
        Record::Delta(delta) => delta.finish,
        _ => None,
    };
    records.iter().filter_map(finish).collect()
}

#[tokio::test]
async fn a_stop_text_is_no_stop_id() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = speaking(directory.path());
    let body = json!({"prompt": "x", "max_tokens": 9, "stop": "cd", "return_token_ids": true});
    let told = send(&gateway, "/v1/completions", &[], &body.to_string()).await.ok();
    let choice = &told["choices"][0];
    assert_eq!((&choice["text"], &choice["token_ids"]), (&json!("ab"), &json!([10, 11, 12, 13])));
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &Value::Null));
    let by_id = json!({"prompt": "x", "max_tokens": 9, "stop_token_ids": [13]});
    let told = send(&gateway, "/v1/completions", &[], &by_id.to_string()).await.ok();
    assert_eq!((&told["choices"][0]["text"], &told["choices"][0]["stop_reason"]), (&json!("abcd"), &json!(13)));
    assert_eq!(finishes(directory.path()), [FinishReason::StopText, FinishReason::Stop(TokenId(13))]);
}

#[tokio::test]
async fn a_streamed_turn_is_durable_when_the_client_has_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = speaking(directory.path());
    let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "stream": true});
    let (events, done) = send(&gateway, "/v1/chat/completions", &[], &body.to_string()).await.events();
    assert!(done && events.len() == 3);
    let records = ledger::read(directory.path()).unwrap();
    let Some(Record::Session(turn)) = records.last() else { panic!("the turn is not in the ledger: {records:?}") };
    assert_eq!(turn.sampled, [TokenId(10), TokenId(11), TokenId(12)]);
}
