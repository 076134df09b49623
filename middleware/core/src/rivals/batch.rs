//! The log-probs of a batch, by sequence and token: what every rival sees. Knows no support and no logits.

/// One value for each token of each sequence; a masked token has one too, without meaning.
pub type PerToken<T> = Vec<Vec<T>>;

/// One sequence, `[T]` each.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// log p_theta, nats.
    pub log_theta: &'a [f64],
    /// log p_s, nats: what others call the old or the proximal policy.
    pub log_s: &'a [f64],
    /// log q, nats.
    pub log_q: &'a [f64],
    /// A, detached.
    pub advantages: &'a [f64],
    /// The tokens that were sampled and count.
    pub mask: &'a [bool],
}

/// A token that counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Token {
    /// log p_theta.
    pub log_theta: f64,
    /// log p_s.
    pub log_s: f64,
    /// log q.
    pub log_q: f64,
    /// A.
    pub advantage: f64,
}

/// Which two policies a ratio compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ratio {
    /// `p_theta / q`: verl's in bypass mode.
    Full,
    /// `p_theta / p_s`: PPO's.
    Lag,
    /// `p_s / q`: verl's in decoupled mode, the behaviour weight of decoupled PPO.
    Numeric,
}

impl Ratio {
    /// The log ratio, nats.
    pub fn log(self, token: &Token) -> f64 {
        match self {
            Self::Full => token.log_theta - token.log_q,
            Self::Lag => token.log_theta - token.log_s,
            Self::Numeric => token.log_s - token.log_q,
        }
    }
}

/// A batch that is none.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum BatchError {
    /// A column of the wrong length.
    #[error("sequence {sequence}: {found} values in {column}, the mask has {expected}")]
    Length {
        /// Index of the sequence.
        sequence: usize,
        /// Name of the column.
        column: &'static str,
        /// Values there.
        found: usize,
        /// Tokens of the sequence.
        expected: usize,
    },
    /// A value that cannot be computed with, at a token that counts.
    #[error("sequence {sequence}, token {position}: {column} is {value}")]
    Value {
        /// Index of the sequence.
        sequence: usize,
        /// Index of the token.
        position: usize,
        /// Name of the column.
        column: &'static str,
        /// The value.
        value: f64,
    },
}

/// Checked sequences; a masked token's values are dropped unread.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    sequences: PerToken<Option<Token>>,
}

impl Batch {
    /// # Errors
    /// Columns of different lengths; where the mask counts, a log-prob that is not finite or above 0, an advantage that is
    /// not finite. No value is replaced by a ratio of 1.
    pub fn new(sequences: &[Sequence<'_>]) -> Result<Self, BatchError> {
        let sequences = sequences.iter().enumerate().map(|(at, sequence)| read(at, sequence));
        Ok(Self { sequences: sequences.collect::<Result<_, _>>()? })
    }

    /// The tokens, `None` where masked.
    pub fn sequences(&self) -> &[Vec<Option<Token>>] {
        &self.sequences
    }

    /// Which tokens count.
    pub fn mask(&self) -> PerToken<bool> {
        self.sequences.iter().map(|sequence| sequence.iter().map(Option::is_some).collect()).collect()
    }

    /// The tokens that count, in order.
    pub fn tokens(&self) -> impl Iterator<Item = &Token> + Clone {
        self.sequences.iter().flatten().flatten()
    }

    /// One value a token; the default where masked.
    pub fn map<T: Default>(&self, of: impl Fn(&Token) -> T) -> PerToken<T> {
        let sequence =
            |tokens: &Vec<Option<Token>>| tokens.iter().map(|t| t.as_ref().map_or_else(T::default, &of)).collect();
        self.sequences.iter().map(sequence).collect()
    }

    /// One value a sequence, from the tokens of it that count, for all of its tokens.
    pub fn broadcast<T: Clone>(&self, of: impl Fn(&[Token]) -> T) -> PerToken<T> {
        let values = self.per_sequence(of);
        values.into_iter().zip(&self.sequences).map(|(value, tokens)| vec![value; tokens.len()]).collect()
    }

    /// One value a sequence, from the tokens of it that count.
    pub fn per_sequence<T>(&self, of: impl Fn(&[Token]) -> T) -> Vec<T> {
        self.sequences.iter().map(|tokens| of(&tokens.iter().flatten().copied().collect::<Vec<_>>())).collect()
    }

    /// The batch with other values of log p_s, `[sequence][token]`; such are proximal policies that are interpolated.
    ///
    /// # Errors
    /// A value that is not finite, or none, at a token that counts.
    pub fn with_log_s(&self, log_s: &[Vec<f64>]) -> Result<Self, BatchError> {
        let mut batch = self.clone();
        for (sequence, tokens) in batch.sequences.iter_mut().enumerate() {
            for (position, token) in tokens.iter_mut().enumerate() {
                let value = log_s.get(sequence).and_then(|row| row.get(position)).copied().unwrap_or(f64::NAN);
                match token {
                    Some(token) if value.is_finite() => token.log_s = value,
                    Some(_) => return Err(BatchError::Value { sequence, position, column: "log p_s", value }),
                    None => {}
                }
            }
        }
        Ok(batch)
    }
}

fn read(sequence: usize, columns: &Sequence<'_>) -> Result<Vec<Option<Token>>, BatchError> {
    let expected = columns.mask.len();
    let named = [
        ("log p_theta", columns.log_theta),
        ("log p_s", columns.log_s),
        ("log q", columns.log_q),
        ("advantage", columns.advantages),
    ];
    if let Some((column, values)) = named.iter().find(|(_, values)| values.len() != expected) {
        return Err(BatchError::Length { sequence, column, found: values.len(), expected });
    }
    let token = |position: usize| {
        let wrong = |(column, values): &(&'static str, &[f64])| {
            let value = values[position];
            let right = value.is_finite() && (value <= 0.0 || *column == "advantage");
            (!right).then_some(BatchError::Value { sequence, position, column, value })
        };
        match named.iter().find_map(wrong) {
            _ if !columns.mask[position] => Ok(None),
            Some(error) => Err(error),
            None => {
                let [log_theta, log_s, log_q, advantage] = named.map(|(_, values)| values[position]);
                Ok(Some(Token { log_theta, log_s, log_q, advantage }))
            }
        }
    };
    (0..expected).map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(log_theta: f64, mask: bool) -> Result<Batch, BatchError> {
        let (columns, mask) = ([[log_theta, -1.0], [-1.0; 2], [-2.0; 2], [1.0; 2]], [mask, true]);
        let [log_theta, log_s, log_q, advantages] = &columns;
        Batch::new(&[Sequence { log_theta, log_s, log_q, advantages, mask: &mask }])
    }

    #[test]
    fn what_is_no_number_is_an_error_unless_it_is_masked() {
        for value in [f64::NAN, f64::NEG_INFINITY, f64::INFINITY, 0.1] {
            assert!(batch(value, true).is_err(), "{value}");
            assert_eq!(batch(value, false).unwrap().map(|t| Ratio::Full.log(t)), [[0.0, 1.0]]);
        }
        let error = batch(f64::NAN, true).unwrap_err().to_string();
        assert_eq!(error, "sequence 0, token 0: log p_theta is NaN");
    }

    #[test]
    fn a_short_column_is_named() {
        let sequence = Sequence { log_theta: &[-1.0], log_s: &[-1.0], log_q: &[], advantages: &[1.0], mask: &[true] };
        let error = Batch::new(&[sequence]).unwrap_err().to_string();
        assert_eq!(error, "sequence 0: 0 values in log q, the mask has 1");
    }
}
