//! Columns as little-endian bytes.

use super::WireError;
use lockstep_core::TokenId;

/// u32 values as bytes.
pub fn from_u32(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// f32 values as bytes.
pub fn from_f32(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Token ids as bytes.
pub fn from_ids(ids: &[TokenId]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.0.to_le_bytes()).collect()
}

/// Bytes as u32 values.
///
/// # Errors
/// A length that is not a multiple of 4.
pub fn to_u32(bytes: &[u8], column: &'static str) -> Result<Vec<u32>, WireError> {
    words(bytes, column).map(|words| words.iter().map(|&word| u32::from_le_bytes(word)).collect())
}

/// Bytes as f32 values.
///
/// # Errors
/// A length that is not a multiple of 4.
pub fn to_f32(bytes: &[u8], column: &'static str) -> Result<Vec<f32>, WireError> {
    words(bytes, column).map(|words| words.iter().map(|&word| f32::from_le_bytes(word)).collect())
}

/// Bytes as token ids.
///
/// # Errors
/// A length that is not a multiple of 4.
pub fn to_ids(bytes: &[u8], column: &'static str) -> Result<Vec<TokenId>, WireError> {
    words(bytes, column).map(|words| words.iter().map(|&word| TokenId(u32::from_le_bytes(word))).collect())
}

fn words<'a>(bytes: &'a [u8], column: &'static str) -> Result<&'a [[u8; 4]], WireError> {
    let (words, rest) = bytes.as_chunks();
    if rest.is_empty() { Ok(words) } else { Err(WireError::Ragged { column, bytes: bytes.len() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_round_trip_and_ragged_bytes_are_named() {
        let values = [0.0, -1.5, f32::NEG_INFINITY];
        assert_eq!(to_f32(&from_f32(&values), "log_q").unwrap(), values);
        assert_eq!(to_u32(&from_u32(&[1, u32::MAX]), "offsets").unwrap(), [1, u32::MAX]);
        let error = to_ids(&[1, 0, 0, 0, 9], "tokens").unwrap_err().to_string();
        assert_eq!(error, "column tokens has 5 bytes, not a multiple of 4");
    }
}
