//! The columns of a delta as they are stored: a singleton costs its id and one bit.
//!
//! | field | content |
//! |---|---|
//! | `tokens` | the drawn tokens, `[T]` |
//! | `listed` | one bit a row, lowest first: it has entries |
//! | `sizes` | entries of each such row, in LEB128 |
//! | `ids`, `log_q` | the entries, `[N]` |
//! | `rest` | absent; or of partly known rows alone; or of every row, where exact rows say something of their own |
//!
//! What is read back equals what was written, bit by bit.

use lockstep_core::{
    TokenId,
    behavior::{Columns, RestColumns},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use std::borrow::Cow;

#[derive(Serialize, Deserialize)]
struct Compact<'a> {
    tokens: Cow<'a, [TokenId]>,
    listed: Vec<u8>,
    sizes: Vec<u8>,
    ids: Cow<'a, [TokenId]>,
    log_q: Cow<'a, [f32]>,
    rest: Rest<'a>,
}

#[derive(Serialize, Deserialize)]
enum Rest<'a> {
    Absent,
    /// One bit a row: it is partly known; the columns of those rows.
    Partial(Vec<u8>, Cow<'a, RestColumns>),
    Every(Cow<'a, RestColumns>),
}

pub(super) fn serialize<S: Serializer>(columns: &Columns, serializer: S) -> Result<S::Ok, S::Error> {
    pack(columns).map_err(ser::Error::custom)?.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Columns, D::Error> {
    unpack(Compact::deserialize(deserializer)?).map_err(de::Error::custom)
}

fn pack(columns: &Columns) -> Result<Compact<'_>, String> {
    let rows = columns.tokens.len();
    if columns.offsets.len() != rows + 1 || columns.offsets.first() != Some(&0) {
        return Err(format!("{} offsets from {:?} for {rows} rows", columns.offsets.len(), columns.offsets.first()));
    }
    let mut sizes = Vec::with_capacity(rows);
    for (row, pair) in columns.offsets.windows(2).enumerate() {
        let size = pair[1].checked_sub(pair[0]).ok_or_else(|| format!("offsets descend at row {row}"))?;
        if size > 0 {
            write_leb128(&mut sizes, size);
        }
    }
    Ok(Compact {
        tokens: Cow::Borrowed(&columns.tokens),
        listed: bits(columns.offsets.windows(2).map(|pair| pair[1] > pair[0])),
        sizes,
        ids: Cow::Borrowed(&columns.ids),
        log_q: Cow::Borrowed(&columns.log_q),
        rest: columns.rest.as_ref().map_or(Rest::Absent, |rest| pack_rest(columns, rest)),
    })
}

fn pack_rest<'a>(columns: &'a Columns, rest: &'a RestColumns) -> Rest<'a> {
    let rows = columns.tokens.len();
    let lengths = [rest.vocabulary.len(), rest.log_q_sampled.len(), rest.log_rest.len()];
    let exact = |row: usize| rest.log_rest[row].to_bits() == f32::NEG_INFINITY.to_bits();
    let implied = |row: usize| {
        let own = own_log_q(columns, row).map(f32::to_bits);
        rest.vocabulary[row] == 0 && own == Some(rest.log_q_sampled[row].to_bits())
    };
    if lengths != [rows; 3] || !(0..rows).all(|row| !exact(row) || implied(row)) {
        return Rest::Every(Cow::Borrowed(rest));
    }
    let partial = || (0..rows).filter(|&row| !exact(row));
    let kept = RestColumns {
        vocabulary: partial().map(|row| rest.vocabulary[row]).collect(),
        log_q_sampled: partial().map(|row| rest.log_q_sampled[row]).collect(),
        log_rest: partial().map(|row| rest.log_rest[row]).collect(),
    };
    Rest::Partial(bits((0..rows).map(|row| !exact(row))), Cow::Owned(kept))
}

/// log q of the drawn token as its row's entries say it.
fn own_log_q(columns: &Columns, row: usize) -> Option<f32> {
    let entries = columns.offsets[row] as usize..columns.offsets[row + 1] as usize;
    if entries.is_empty() {
        return Some(0.0);
    }
    let at = columns.ids.get(entries.clone())?.iter().position(|id| *id == columns.tokens[row])?;
    columns.log_q.get(entries.start + at).copied()
}

fn unpack(compact: Compact<'_>) -> Result<Columns, String> {
    let rows = compact.tokens.len();
    let mut sizes = &*compact.sizes;
    let mut offsets = Vec::with_capacity(rows + 1);
    let mut end = 0u32;
    offsets.push(0);
    for listed in flags(&compact.listed, rows)? {
        let size = if listed { read_leb128(&mut sizes)? } else { 0 };
        end = end.checked_add(size).ok_or("more entries than an offset counts")?;
        offsets.push(end);
    }
    if !sizes.is_empty() {
        return Err(format!("{} bytes of sizes belong to no row", sizes.len()));
    }
    let (tokens, ids, log_q) = (compact.tokens.into_owned(), compact.ids.into_owned(), compact.log_q.into_owned());
    let mut columns = Columns { tokens, offsets, ids, log_q, rest: None };
    columns.rest = match compact.rest {
        Rest::Absent => None,
        Rest::Every(rest) => Some(rest.into_owned()),
        Rest::Partial(partial, kept) => Some(unpack_rest(&columns, &flags(&partial, rows)?, &kept)?),
    };
    Ok(columns)
}

fn unpack_rest(columns: &Columns, partial: &[bool], kept: &RestColumns) -> Result<RestColumns, String> {
    let count = partial.iter().filter(|&&partial| partial).count();
    let lengths = [kept.vocabulary.len(), kept.log_q_sampled.len(), kept.log_rest.len()];
    if lengths != [count; 3] {
        return Err(format!("rest columns of {lengths:?} values for {count} rows"));
    }
    let mut rest = RestColumns { vocabulary: vec![], log_q_sampled: vec![], log_rest: vec![] };
    let mut next = 0;
    for (row, &partial) in partial.iter().enumerate() {
        let (vocabulary, own, log_rest) = if partial {
            next += 1;
            (kept.vocabulary[next - 1], kept.log_q_sampled[next - 1], kept.log_rest[next - 1])
        } else {
            let own = own_log_q(columns, row).ok_or_else(|| format!("row {row} does not list its token"))?;
            (0, own, f32::NEG_INFINITY)
        };
        rest.vocabulary.push(vocabulary);
        rest.log_q_sampled.push(own);
        rest.log_rest.push(log_rest);
    }
    Ok(rest)
}

fn bits(flags: impl Iterator<Item = bool>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (at, flag) in flags.enumerate() {
        if at % 8 == 0 {
            bytes.push(0);
        }
        if let Some(last) = bytes.last_mut() {
            *last |= u8::from(flag) << (at % 8);
        }
    }
    bytes
}

fn flags(bytes: &[u8], rows: usize) -> Result<Vec<bool>, String> {
    if bytes.len() != rows.div_ceil(8) {
        return Err(format!("{} bytes of flags for {rows} rows", bytes.len()));
    }
    let flag = |at: usize| bytes[at / 8] >> (at % 8) & 1 == 1;
    if (rows..bytes.len() * 8).any(flag) {
        return Err(format!("flags of rows beyond {rows}"));
    }
    Ok((0..rows).map(flag).collect())
}

fn write_leb128(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn read_leb128(bytes: &mut &[u8]) -> Result<u32, String> {
    let mut value = 0u64;
    for shift in (0..35).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or("the sizes end inside a number")?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            let canonical = value > 0 && (byte > 0 || shift == 0);
            return u32::try_from(value).ok().filter(|_| canonical).ok_or(format!("{value} is no size of a row"));
        }
    }
    Err("a size of a row of more than 5 bytes".into())
}
