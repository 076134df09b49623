//! JSON as Python's `json.dumps` writes it: models were trained on `": "` and `", "`, and other spaces are other ids.
//!
//! Works on the values of a template, where tuples, integers and the order of keys are as in the message.

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args},
};
use std::fmt::Write;

/// How `json.dumps` was asked to write.
#[derive(Debug, Clone)]
struct Style {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sorted: bool,
}

/// The filter `tojson` as `transformers` gives it to templates:
/// `json.dumps(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let style = style(&args.into_values())?;
    let mut writer = Writer { text: String::new(), style: &style, depth: 0 };
    writer.value(value)?;
    Ok(writer.text)
}

/// [`tojson`] of a plain JSON value.
#[cfg(test)]
pub(super) fn dumps(value: &serde_json::Value) -> Result<String, Error> {
    tojson(&Value::from(minijinja::value::Serde(value)), Rest(Vec::new()))
}

type Arguments = (Option<Value>, Option<Value>, Option<Value>, Option<Value>, Kwargs);

fn style(args: &[Value]) -> Result<Style, Error> {
    let (ascii, indent, separators, sorted, named): Arguments = from_args(args)?;
    let given = |place: Option<Value>, name| match place {
        Some(value) => Ok(Some(value)),
        None => named.get::<Option<Value>>(name),
    };
    let ascii = given(ascii, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = given(indent, "indent")?.filter(|value| !value.is_none());
    let separators = given(separators, "separators")?.filter(|value| !value.is_none());
    let sorted = given(sorted, "sort_keys")?.is_some_and(|value| value.is_true());
    named.assert_all_used()?;
    let indent = indent.map(|value| match value.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(value.as_usize().unwrap_or_default()),
    });
    let (item, key) = match separators {
        Some(pair) => (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    Ok(Style { ascii, indent, item, key, sorted })
}

struct Writer<'a> {
    text: String,
    style: &'a Style,
    depth: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.text.push_str(&value.to_string()),
            ValueKind::Number => write_float(&mut self.text, f64::try_from(value.clone())?),
            ValueKind::String => write_string(&mut self.text, value.as_str().unwrap_or_default(), self.style.ascii),
            ValueKind::Seq | ValueKind::Iterable => self.list(value)?,
            ValueKind::Map => self.object(value)?,
            kind => {
                return Err(Error::new(ErrorKind::BadSerialization, format!("{kind} is not JSON serializable")));
            }
        }
        Ok(())
    }

    fn list(&mut self, value: &Value) -> Result<(), Error> {
        self.text.push('[');
        let items: Vec<Value> = value.try_iter()?.collect();
        for (at, item) in items.iter().enumerate() {
            self.before(at);
            self.value(item)?;
            self.depth -= 1;
        }
        self.close(items.is_empty(), ']');
        Ok(())
    }

    fn object(&mut self, value: &Value) -> Result<(), Error> {
        self.text.push('{');
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.style.sorted {
            keys.sort();
        }
        for (at, key) in keys.iter().enumerate() {
            self.before(at);
            self.key(key)?;
            self.text.push_str(&self.style.key);
            self.value(&value.get_item(key)?)?;
            self.depth -= 1;
        }
        self.close(keys.is_empty(), '}');
        Ok(())
    }

    /// Keys that are no strings are written as strings, as Python does.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        if let Some(key) = key.as_str() {
            write_string(&mut self.text, key, self.style.ascii);
            return Ok(());
        }
        self.text.push('"');
        self.value(key)?;
        self.text.push('"');
        Ok(())
    }

    fn before(&mut self, at: usize) {
        if at > 0 {
            self.text.push_str(&self.style.item);
        }
        self.depth += 1;
        self.new_line();
    }

    fn close(&mut self, empty: bool, bracket: char) {
        if !empty {
            self.new_line();
        }
        self.text.push(bracket);
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.style.indent {
            self.text.push('\n');
            self.text.push_str(&indent.repeat(self.depth));
        }
    }
}

/// Python's `repr` of a float: shortest digits that read back, exponent from 1e16 and below 1e-4.
fn write_float(text: &mut String, number: f64) {
    if number.is_nan() {
        return text.push_str("NaN");
    }
    if number.is_infinite() {
        return text.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" });
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        text.push_str(&plain);
        if !plain.contains('.') {
            text.push_str(".0");
        }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(text, "{digits}e{sign}{:02}", exponent.abs());
    }
}

fn write_string(text: &mut String, string: &str, ascii: bool) {
    text.push('"');
    for character in string.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            other if (other as u32) < 0x20 || (ascii && !(' '..='~').contains(&other)) => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    let _ = write!(text, "\\u{unit:04x}");
                }
            }
            other => text.push(other),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::Serde;

    fn written(json: &str) -> String {
        dumps(&serde_json::from_str(json).unwrap()).unwrap()
    }

    #[test]
    fn spaces_order_and_escapes_are_pythons() {
        let spaced = r#"{"b": 1, "a": [1, 2.0, {"c": null}], "é": "\"\\\n\u001f<>&'é"}"#;
        let compact = r#"{"b":1,"a":[1,2.0,{"c":null}],"é":"\"\\\n\u001f<>&'é"}"#;
        assert_eq!(written(compact), spaced);
        assert_eq!(written("{}"), "{}");
        assert_eq!(written("[]"), "[]");
    }

    /// Expected values are those of CPython 3's `json.dumps`.
    #[test]
    fn floats_are_pythons() {
        let rows = [
            ("1e16", "1e+16"),
            ("1e15", "1000000000000000.0"),
            ("123456789012345680", "123456789012345680"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("1.5e-7", "1.5e-07"),
            ("1e100", "1e+100"),
            ("-0.0", "-0.0"),
            ("0.1", "0.1"),
            ("2.5e300", "2.5e+300"),
        ];
        for (json, python) in rows {
            assert_eq!(written(json), python, "{json}");
        }
    }

    #[test]
    fn options_are_pythons() {
        let value = Value::from(Serde(serde_json::json!({"b": [1], "a": "é😀\u{7f}", "c": []})));
        let env = {
            let mut env = minijinja::Environment::new();
            env.add_filter("tojson", tojson);
            env
        };
        let render = |source: &str| env.render_str(source, minijinja::context! { x => &value }).unwrap();
        assert_eq!(render("{{ x|tojson(true) }}"), r#"{"b": [1], "a": "\u00e9\ud83d\ude00\u007f", "c": []}"#);
        assert_eq!(render("{{ x|tojson(sort_keys=true) }}"), "{\"a\": \"é😀\u{7f}\", \"b\": [1], \"c\": []}");
        assert_eq!(render("{{ x|tojson(separators=(',', ':')) }}"), "{\"b\":[1],\"a\":\"é😀\u{7f}\",\"c\":[]}");
        let indented = "{\n  \"b\": [\n    1\n  ],\n  \"a\": \"é😀\u{7f}\",\n  \"c\": []\n}";
        assert_eq!(render("{{ x|tojson(indent=2) }}"), indented);
        assert!(env.render_str("{{ x|tojson(colour=1) }}", minijinja::context! { x => &value }).is_err());
    }
}
