//! Prompts of a conversation, turn after turn.

use crate::qwen3;
use lockstep::session::{Answer, Ask, Conversation, Key, Sessions, Settings};
use lockstep_core::{FinishReason, TokenId};
use serde_json::json;

fn ids(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().map(|&id| TokenId(id)).collect()
}

#[test]
fn a_turn_continues_the_exact_ids_of_the_last() {
    let sessions = Sessions::new(qwen3::qwen3(), Settings::default());
    let user = json!({"role": "user", "content": "How are you?"});
    let first = sessions.extend(Key::Session("a"), Conversation::new(&[user.clone()], &[])).unwrap();
    assert_eq!(first.prompt, ids(&[151644, 872, 198, 4340, 525, 498, 30, 151645, 198, 151644, 77091, 198]));
    let rendered = sessions.model().render(Conversation::new(&[user.clone()], &[]), Ask::Answer).unwrap();
    assert_eq!(rendered.text, "<|im_start|>user\nHow are you?<|im_end|>\n<|im_start|>assistant\n");
    let sampled = ids(&[53122, 316, 151645]);
    let shown = json!({"role": "assistant", "content": " Pantom"});
    let answer = Answer { sampled: sampled.clone(), finish: FinishReason::Stop(TokenId(151645)), shown: shown.clone() };
    sessions.commit(&first, &answer).unwrap();
    let next = json!({"role": "user", "content": "What is your name?"});
    let second = sessions.extend(Key::Session("a"), Conversation::new(&[user, shown, next], &[])).unwrap();
    let new = ids(&[198, 151644, 872, 198, 3838, 374, 697, 829, 30, 151645, 198, 151644, 77091, 198]);
    assert_eq!(second.prompt, [first.prompt, sampled, new].concat());
}
