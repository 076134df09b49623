//! A vector and its tolerance.

use serde_json::Value;
use std::{cell::RefCell, collections::BTreeSet, path::Path};

/// One file of worked values.
pub struct Golden {
    pub name: String,
    pub description: String,
    pub inputs: Value,
    pub expected: Value,
    pub must_error: Vec<String>,
    rel: f64,
    abs: f64,
    seen: RefCell<BTreeSet<String>>,
}

impl Golden {
    pub fn load(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let tolerance =
            |key: &str| json["tolerance"][key].as_f64().unwrap_or_else(|| panic!("{}: no {key}", path.display()));
        Self {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            rel: tolerance("f64_rel"),
            abs: tolerance("f64_abs"),
            description: serde_json::from_value(json["description"].take()).unwrap_or_default(),
            must_error: serde_json::from_value(json["must_error"].take()).unwrap_or_default(),
            inputs: json["inputs"].take(),
            expected: json["expected"].take(),
            seen: RefCell::default(),
        }
    }

    /// Compares a computed value with the expected one of that name; arrays by element, `null` with anything.
    pub fn check(&self, key: &str, found: impl Into<Value>) {
        self.seen.borrow_mut().insert(key.into());
        let (expected, found) = (&self.expected[key], found.into());
        assert!(!expected.is_null(), "{}: {key} is not expected", self.name);
        if let Some(difference) = self.differs(expected, &found) {
            panic!("{}: {key}{difference}", self.name);
        }
    }

    /// As [`Golden::check`], for a value that not every vector of the kind gives.
    pub fn check_if_given(&self, key: &str, found: impl Into<Value>) {
        if !self.expected[key].is_null() {
            self.check(key, found);
        }
    }

    /// Expected values that nothing was compared with.
    pub fn unseen(&self) -> Vec<&String> {
        let seen = self.seen.borrow();
        let keys = self.expected.as_object().into_iter().flatten().map(|(key, _)| key);
        keys.filter(|key| !seen.contains(*key)).collect()
    }

    /// Where and how two values differ.
    pub fn differs(&self, expected: &Value, found: &Value) -> Option<String> {
        match (expected, found) {
            (Value::Null, _) => None,
            (Value::Array(e), Value::Array(f)) if e.len() == f.len() => {
                let mut pairs = e.iter().zip(f).enumerate();
                pairs.find_map(|(at, (e, f))| self.differs(e, f).map(|difference| format!("[{at}]{difference}")))
            }
            (Value::Number(e), Value::Number(f)) => {
                let (e, f) = (e.as_f64().unwrap(), f.as_f64().unwrap());
                let close = (e - f).abs() <= self.abs + self.rel * e.abs();
                (!close).then(|| format!(": {f:e} is not {e:e}"))
            }
            _ => (expected != found).then(|| format!(": {found} is not {expected}")),
        }
    }
}
