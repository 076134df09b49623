//! Qwen3's ids and texts: those that drift, those that merge, those that are no characters, those without a text.

use crate::{conversation::ids, qwen3};
use lockstep::session::{Show, Special, Unknown};
use lockstep_core::TokenId;

/// Ids a sampler may draw, one way or another; their text; and the ids the text has.
type Drift<'a> = (&'a [&'a [u32]], &'a str, &'a [u32]);

#[test]
fn sampled_ids_drift_when_their_text_is_encoded() {
    let model = qwen3::qwen3();
    let rows: [Drift<'_>; 11] = [
        (&[&[53122, 316], &[10990, 37401]], " Pantom", &[393, 30002]),
        (&[&[39, 83722]], "HAVING", &[72239, 1718]),
        (&[&[71, 4791], &[49122, 385], &[56095, 78]], "hello", &[14990]),
        (&[&[220, 97597], &[526, 27135], &[946, 41140], &[2590, 1663]], " international", &[6489]),
        (&[&[198, 198]], "\n\n", &[271]),
        (&[&[198, 271], &[271, 198]], "\n\n\n", &[1406]),
        (&[&[13, 271], &[624, 198]], ".\n\n", &[382]),
        (&[&[0, 271], &[4894, 198]], "!\n\n", &[2219]),
        (&[&[27, 14]], "</", &[522]),
        (&[&[220, 1782], &[259, 383], &[270, 68]], " the", &[279]),
        (&[&[94], &[95]], "\u{fffd}", &[5691]),
    ];
    for (sampled, text, encoded) in rows {
        assert_eq!(model.encode(text).unwrap(), ids(encoded), "{text:?}");
        for sampled in sampled {
            assert_eq!(model.decode(&ids(sampled), Show::default()).unwrap(), text, "{sampled:?}");
            assert_ne!(*sampled, encoded);
        }
    }
    let rows: [(&[u32], &str); 3] = [
        (&[151644, 872, 198, 4340, 525, 498, 30, 151645, 198], "<|im_start|>user\nHow are you?<|im_end|>\n"),
        (&[472, 83722], " HAVING"),
        (&[3603, 23066], " indivisible"),
    ];
    for (sampled, text) in rows {
        assert_eq!(model.decode(&ids(sampled), Show::ALL).unwrap(), text);
        assert_eq!(model.encode(text).unwrap(), ids(sampled), "no drift");
    }
}

#[test]
fn a_character_is_shown_when_it_is_whole() {
    let model = qwen3::qwen3();
    let text = "世界 👩‍👩‍👧 é 😀.";
    let bytes: Vec<TokenId> = model.encode(text).unwrap();
    let mut decoder = model.decoder(Show::ANSWER);
    let pieces: Vec<String> = bytes.iter().map(|&id| decoder.push(id).unwrap()).collect();
    assert_eq!(decoder.finish().unwrap(), "");
    assert_eq!(pieces.concat(), text);
    assert!(!pieces.concat().contains('\u{fffd}'));
    let twin: String = bytes.iter().map(|&id| model.decode(&[id], Show::ANSWER).unwrap()).collect();
    assert!(twin.contains('\u{fffd}'), "the twin shows halves of characters");
}

/// Every byte is a token of its own, so that each way to cut a character is drawn here.
#[test]
fn bytes_join_to_characters_whatever_follows() {
    let model = qwen3::qwen3();
    let byte = |byte: u8| {
        let shown = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let code = match shown(byte) {
            true => u32::from(byte),
            false => 0x100 + (0..byte).filter(|&other| !shown(other)).count() as u32,
        };
        model.token(&char::from_u32(code).unwrap().to_string()).unwrap()
    };
    let push = |decoder: &mut lockstep::session::Decoder, bytes: &[u8]| -> String {
        bytes.iter().map(|&b| decoder.push(byte(b)).unwrap()).collect()
    };
    let mut decoder = model.decoder(Show::ANSWER);
    assert_eq!(push(&mut decoder, &[0xf0, 0x9f, 0x98]), "", "an unfinished character is held");
    assert_eq!(push(&mut decoder, &[0x80]), "😀");
    assert_eq!(push(&mut decoder, &[0xa1]), "\u{fffd}", "no character starts with this byte");
    assert_eq!(push(&mut decoder, &[0xe4, b'a']), "\u{fffd}a", "broken off by a letter");
    assert_eq!(push(&mut decoder, &[0xf0, 0x9f]), "");
    assert_eq!(decoder.finish().unwrap(), "\u{fffd}", "broken off by the end");
    assert_eq!(push(&mut decoder, &[0xe4]), "");
    let padded = decoder.push(TokenId(151_700)).unwrap();
    assert_eq!(padded, "\u{fffd}<|unknown:151700|>", "broken off by an id without a text");
    assert_eq!(decoder.unknown(), ids(&[151_700]));
}

#[test]
fn special_tokens_are_shown_or_not() {
    let model = qwen3::qwen3();
    let sampled = ids(&[151667, 198, 39, 151668, 151645, 151643]);
    assert_eq!(model.decode(&sampled, Show::ANSWER).unwrap(), "<think>\nH</think>", "a client sees no <|im_end|>");
    assert_eq!(model.decode(&sampled, Show::ALL).unwrap(), "<think>\nH</think><|im_end|><|endoftext|>");
}

#[test]
fn ids_without_a_text_are_refused_or_shown_by_number() {
    let model = qwen3::qwen3();
    assert_eq!((model.vocabulary(), model.table_end(), model.known()), (151_936, 151_669, 151_669));
    for id in [151_669, 151_935] {
        let refused = model.decode(&ids(&[39, id]), Show::default()).unwrap_err().to_string();
        let knows = "the tokenizer knows 151669 of the model's 151936 ids";
        assert_eq!(refused, format!("token {id} at position 1 has no text: {knows}"));
        let shown = model.decode(&ids(&[39, id, 39]), Show::ANSWER).unwrap();
        assert_eq!(shown, format!("H<|unknown:{id}|>H"));
    }
    let all = Show { special: Special::Shown, unknown: Unknown::Placeholder };
    let outside = model.decode(&ids(&[151_936]), all).unwrap_err().to_string();
    assert_eq!(outside, "token 151936 at position 0 is outside the model's vocabulary of 151936");
}
