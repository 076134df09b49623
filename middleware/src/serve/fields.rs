//! The fields of a request's JSON body. Whatever a dialect does not list is refused by name: a typo of a sampling field would
//! otherwise sample from another distribution than the one asked for.

use super::refusal::Refusal;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt};

/// A value at which a field changes nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Neutral {
    /// This number.
    Number(f64),
    /// `false`.
    False,
    /// An empty list, object or text.
    Empty,
    /// `null` alone.
    Null,
    /// This text.
    Text(&'static str),
    /// This JSON, white space aside.
    Json(&'static str),
}

impl Neutral {
    fn is(self, raw: &RawValue) -> bool {
        let text = raw.get();
        match self {
            _ if text == "null" => true,
            Self::Number(neutral) => serde_json::from_str::<f64>(text).is_ok_and(|value| value == neutral),
            Self::False => text == "false",
            Self::Empty => matches!(text.split_whitespace().collect::<String>().as_str(), "[]" | "{}" | "\"\""),
            Self::Null => false,
            Self::Json(neutral) => text.split_whitespace().collect::<String>() == neutral,
            Self::Text(neutral) => serde_json::from_str::<Cow<'_, str>>(text).is_ok_and(|value| value == neutral),
        }
    }
}

impl fmt::Display for Neutral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(value) => write!(f, "{value}"),
            Self::False => f.write_str("false"),
            Self::Empty => f.write_str("empty"),
            Self::Null => f.write_str("null"),
            Self::Json(value) => f.write_str(value),
            Self::Text(value) => write!(f, "{value:?}"),
        }
    }
}

/// What a dialect does with each field it knows.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// The dialect's name, as it stands in errors.
    pub dialect: &'static str,
    /// Fields that are read.
    pub read: &'static [&'static str],
    /// Fields that change neither the distribution nor the answer, and are not passed on.
    pub harmless: &'static [&'static str],
    /// Fields that would change the distribution or the answer, and are accepted at these values alone.
    pub neutral: &'static [(&'static str, Neutral)],
}

impl Policy {
    fn nearest(&self, name: &str) -> Option<&'static str> {
        let known = self.read.iter().chain(self.harmless).copied().chain(self.neutral.iter().map(|&(name, _)| name));
        known
            .map(|known| (distance(known, name), known))
            .filter(|&(distance, _)| distance <= 2)
            .min()
            .map(|(_, name)| name)
    }
}

/// Edits between two names, capped by the shorter one's length.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// The fields that have not been read yet.
#[derive(Debug)]
pub struct Fields<'a> {
    policy: &'static Policy,
    entries: Vec<(Cow<'a, str>, &'a RawValue)>,
}

impl<'a> Fields<'a> {
    /// The fields of a body.
    ///
    /// # Errors
    /// A body that is no JSON object, or that has a field twice.
    pub fn parse(body: &'a [u8], policy: &'static Policy) -> Result<Self, Refusal> {
        let Entries(entries) = serde_json::from_slice(body)
            .map_err(|error| Refusal::request(format!("the body is no JSON object: {error}")))?;
        Self::once(entries, policy)
    }

    /// The fields of an object inside a body.
    ///
    /// # Errors
    /// As [`Fields::parse`].
    pub fn nested(raw: &'a RawValue, name: &str, policy: &'static Policy) -> Result<Self, Refusal> {
        let Entries(entries) =
            serde_json::from_str(raw.get()).map_err(|error| Refusal::field(name, format!("{name}: {error}")))?;
        Self::once(entries, policy)
    }

    fn once(entries: Vec<(Cow<'a, str>, &'a RawValue)>, policy: &'static Policy) -> Result<Self, Refusal> {
        for (at, (name, _)) in entries.iter().enumerate() {
            if entries[..at].iter().any(|(other, _)| other == name) {
                return Err(Refusal::field(name, format!("field {name} stands twice in the request")));
            }
        }
        Ok(Self { policy, entries })
    }

    /// The raw value of a field; `null` is as good as absent.
    pub fn raw(&mut self, name: &str) -> Option<&'a RawValue> {
        debug_assert!(self.policy.read.contains(&name), "{name} is not listed for {}", self.policy.dialect);
        let at = self.entries.iter().position(|(known, _)| known == name)?;
        let (_, raw) = self.entries.swap_remove(at);
        (raw.get() != "null").then_some(raw)
    }

    /// The value of a field, if it is there.
    ///
    /// # Errors
    /// A value of another type.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Refusal> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let value = serde_json::from_str(raw.get());
        value.map(Some).map_err(|error| Refusal::field(name, format!("field {name}: {error}")))
    }

    /// A flag, false when absent.
    ///
    /// # Errors
    /// A value that is no flag.
    pub fn flag(&mut self, name: &str) -> Result<bool, Refusal> {
        Ok(self.take(name)?.unwrap_or(false))
    }

    /// What is left must be harmless, or have a value that changes nothing.
    ///
    /// # Errors
    /// The first field that is neither.
    pub fn finish(self) -> Result<(), Refusal> {
        self.finish_with(&[])
    }

    /// The same, with further fields that are accepted at one value alone.
    ///
    /// # Errors
    /// The first field that is neither harmless nor at such a value.
    pub fn finish_with(self, neutral: &[(&str, Neutral)]) -> Result<(), Refusal> {
        let Self { policy, entries } = self;
        for (name, raw) in entries {
            let name = &*name;
            if policy.harmless.contains(&name) {
                continue;
            }
            match policy.neutral.iter().chain(neutral).find(|(known, _)| *known == name) {
                Some((_, neutral)) if neutral.is(raw) => {}
                Some((_, neutral)) => {
                    let message = format!(
                        "field {name} would change the distribution or the answer in a way that is not recorded; only \
                         {neutral} is accepted"
                    );
                    return Err(Refusal::field(name, message));
                }
                None => return Err(unknown(policy, name)),
            }
        }
        Ok(())
    }
}

fn unknown(policy: &Policy, name: &str) -> Refusal {
    let dialect = policy.dialect;
    let hint = policy.nearest(name).map_or_else(String::new, |near| format!("; did you mean {near}?"));
    Refusal::field(name, format!("{dialect} has no field {name} here, and what is not known is not passed on{hint}"))
}

struct Entries<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some((Name(name), value)) = map.next_entry::<Name<'de>, &'de RawValue>()? {
                    entries.push((name, value));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// A key, borrowed where it has no escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field name")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy {
        dialect: "the test",
        read: &["top_p", "n"],
        harmless: &["user"],
        neutral: &[("logit_bias", Neutral::Empty), ("frequency_penalty", Neutral::Number(0.0))],
    };

    fn rest(body: &str) -> String {
        let mut fields = match Fields::parse(body.as_bytes(), &POLICY) {
            Ok(fields) => fields,
            Err(refusal) => return refusal.to_string(),
        };
        match fields.take::<f64>("top_p").and_then(|_| fields.finish()) {
            Ok(()) => "accepted".to_owned(),
            Err(refusal) => refusal.to_string(),
        }
    }

    #[test]
    fn harmless_and_neutral_fields_pass_and_all_others_are_named() {
        assert_eq!(rest(r#"{"top_p":0.5,"user":{"deep":[1]},"logit_bias":{ },"frequency_penalty":0.0}"#), "accepted");
        assert_eq!(rest(r#"{"logit_bias":null}"#), "accepted");
        assert!(rest(r#"{"logit_bias":{"7":-100}}"#).starts_with("field logit_bias would change the distribution"));
        assert!(rest(r#"{"frequency_penalty":0.1}"#).contains("only 0 is accepted"));
        assert!(rest(r#"{"topp":0.5}"#).ends_with("did you mean top_p?"));
        assert!(rest(r#"{"grammar":"x"}"#).starts_with("the test has no field grammar here"));
    }

    #[test]
    fn wrong_types_doubled_fields_and_other_bodies_are_named() {
        assert!(rest(r#"{"top_p":"0.5"}"#).starts_with("field top_p: invalid type"));
        assert_eq!(rest(r#"{"top_p":0.5,"top_\u0070":1}"#), "field top_p stands twice in the request");
        assert!(rest("[1]").starts_with("the body is no JSON object"));
        assert!(rest(r#"{"top_p":0.5"#).starts_with("the body is no JSON object"));
    }
}
