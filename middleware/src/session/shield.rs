//! Keeps a special token that somebody wrote into a message apart from those the template writes.
//!
//! A page that contains `<|im_end|>` must not end a turn. Before a template runs, such a text is put between two
//! characters that occur nowhere else; after it, what stands between them is encoded as plain text.

use aho_corasick::{AhoCorasick, MatchKind};
use lockstep_core::TokenId;
use serde_json::{Map, Value as Json};

/// What special tokens in a message's text become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpecialInText {
    /// Text: the ids of its letters. Nobody can end a turn from inside a message.
    #[default]
    Text,
    /// The special token, as `transformers` and the engines' own chat endpoints have it.
    Token,
}

/// The special tokens of a tokenizer: their texts, their ids.
#[derive(Debug)]
pub(super) struct Specials {
    ids: Vec<TokenId>,
    matcher: AhoCorasick,
}

/// Two characters nobody wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shield {
    open: char,
    close: char,
}

/// A piece of a rendered text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// No token in it is special.
    Text(String),
    /// A special token.
    Special(TokenId),
}

impl Specials {
    /// Of these texts and ids.
    pub(super) fn new(tokens: &[(String, TokenId)]) -> Result<Self, String> {
        let texts = tokens.iter().map(|(text, _)| text.as_str());
        let matcher = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
        Ok(Self { ids: tokens.iter().map(|(_, id)| *id).collect(), matcher: matcher.map_err(|e| e.to_string())? })
    }

    /// Whether a token is one of them.
    pub(super) fn contains(&self, token: TokenId) -> bool {
        self.ids.contains(&token)
    }

    /// The message's number and the special token it holds, of the first that does.
    pub(super) fn within(&self, values: &[Json]) -> Option<(usize, String)> {
        values.iter().enumerate().find_map(|(at, value)| {
            let mut texts = Vec::new();
            collect(value, &mut texts);
            let found = texts.into_iter().find_map(|text| Some(text[self.matcher.find(text)?.range()].to_owned()));
            Some((at, found?))
        })
    }

    /// The values with every special token in them between the two characters.
    pub(super) fn shielded(&self, values: &[Json], shield: Shield) -> Vec<Json> {
        values.iter().map(|value| self.shielded_value(value, shield)).collect()
    }

    fn shielded_value(&self, value: &Json, shield: Shield) -> Json {
        match value {
            Json::String(text) => Json::String(self.shielded_text(text, shield)),
            Json::Array(items) => Json::Array(self.shielded(items, shield)),
            Json::Object(fields) => {
                let field = |(key, value): (&String, &Json)| {
                    (self.shielded_text(key, shield), self.shielded_value(value, shield))
                };
                Json::Object(fields.iter().map(field).collect::<Map<String, Json>>())
            }
            other => other.clone(),
        }
    }

    fn shielded_text(&self, text: &str, shield: Shield) -> String {
        let mut shielded = String::with_capacity(text.len());
        self.matcher.replace_all_with(text, &mut shielded, |_, token, shielded| {
            shielded.push(shield.open);
            shielded.push_str(token);
            shielded.push(shield.close);
            true
        });
        shielded
    }

    /// A rendered text cut at its special tokens, but for those between the two characters, which go.
    ///
    /// # Errors
    /// A template that cut or escaped what was put between them.
    pub(super) fn pieces(&self, text: &str, shield: Shield) -> Result<Vec<Piece>, String> {
        let (mut pieces, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(shield.open) {
            let inside = &rest[at + shield.open.len_utf8()..];
            let end = inside.find(shield.close).ok_or("the chat template cuts a special token in a message in two")?;
            self.cut(&rest[..at], &mut plain, &mut pieces);
            plain.push_str(&inside[..end]);
            rest = &inside[end + shield.close.len_utf8()..];
        }
        if rest.contains(shield.close) || text.contains(&format!("\\u{:04x}", shield.open as u32)) {
            return Err("the chat template cuts or escapes a special token in a message".into());
        }
        self.cut(rest, &mut plain, &mut pieces);
        pieces.push(Piece::Text(plain));
        Ok(pieces)
    }

    fn cut(&self, text: &str, plain: &mut String, pieces: &mut Vec<Piece>) {
        let mut from = 0;
        for found in self.matcher.find_iter(text) {
            plain.push_str(&text[from..found.start()]);
            pieces.push(Piece::Text(std::mem::take(plain)));
            pieces.push(Piece::Special(self.ids[found.pattern().as_usize()]));
            from = found.end();
        }
        plain.push_str(&text[from..]);
    }
}

impl Shield {
    /// Two characters that are in none of the values.
    pub(super) fn outside(values: &[&[Json]]) -> Option<Self> {
        let mut texts = Vec::new();
        values.iter().copied().flatten().for_each(|value| collect(value, &mut texts));
        let mut free =
            ('\u{e000}'..='\u{f8ff}').filter(|candidate| !texts.iter().any(|text| text.contains(*candidate)));
        Some(Self { open: free.next()?, close: free.next()? })
    }

    /// The rendered text without the two characters.
    pub(super) fn lifted(self, text: &str) -> String {
        text.replace([self.open, self.close], "")
    }
}

fn collect<'a>(value: &'a Json, texts: &mut Vec<&'a str>) {
    match value {
        Json::String(text) => texts.push(text),
        Json::Array(items) => items.iter().for_each(|item| collect(item, texts)),
        Json::Object(fields) => fields.iter().for_each(|(key, value)| {
            texts.push(key);
            collect(value, texts);
        }),
        _ => {}
    }
}
