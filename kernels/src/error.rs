//! Everything that can be wrong with the input of a kernel, with the numbers.

use crate::chain::Filter;

/// A refused input. Nothing in this crate panics on data.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A filter parameter outside its domain.
    #[error("{filter} is {value}, wanted {wanted}")]
    Parameter {
        /// Name of the filter.
        filter: &'static str,
        /// The value given.
        value: f64,
        /// The domain in words.
        wanted: &'static str,
    },
    /// The same kind of filter stated twice in one chain.
    #[error("{first:?} and {second:?} are the same filter stated twice, at places {at:?} of the chain")]
    Repeated {
        /// The earlier statement.
        first: Filter,
        /// The later statement.
        second: Filter,
        /// Places in the chain, counted from 0.
        at: (usize, usize),
    },
    /// A row without entries.
    #[error("row is empty")]
    EmptyRow,
    /// A logit that is NaN or positive infinity.
    #[error("logit of id {id} is {value}")]
    BadLogit {
        /// Position in the row, which is the vocabulary id.
        id: usize,
        /// The value found.
        value: f64,
    },
    /// A row, on a card, of which some logit is NaN or positive infinity.
    #[error("a logit of {len} is NaN or positive infinity")]
    NotLogits {
        /// Length of the row.
        len: usize,
    },
    /// A row of negative infinities.
    #[error("none of {len} logits is finite")]
    NoFiniteLogit {
        /// Length of the row.
        len: usize,
    },
    /// A row whose mass would not fit 64 bits.
    #[error("row has {len} entries, at most {most} can be summed exactly")]
    LongRow {
        /// Its length.
        len: usize,
        /// The longest that can be.
        most: usize,
    },
    /// An id outside the row.
    #[error("id {id} at place {place} is outside a row of {len}")]
    OutsideRow {
        /// The id asked for.
        id: u32,
        /// Its place in the list of ids.
        place: usize,
        /// Length of the row.
        len: usize,
    },
    /// Slices that must have one length have several.
    #[error("{name} has {got} entries, param has {want}")]
    Length {
        /// The slice at fault.
        name: &'static str,
        /// Its length.
        got: usize,
        /// The length of the parameter slice.
        want: usize,
    },
    /// A length that is no multiple of a width.
    #[error("{name}: {len}, wanted a multiple of {width}")]
    Width {
        /// The slice at fault.
        name: &'static str,
        /// Its length.
        len: usize,
        /// Entries a row.
        width: usize,
    },
    /// Two numbers that must agree do not.
    #[error("{name}: {got}, wanted {want}")]
    Size {
        /// What is counted.
        name: &'static str,
        /// The number found.
        got: usize,
        /// The number it must be.
        want: usize,
    },
    /// A row of the hidden states that is not there.
    #[error("row {at} of {rows} rows of hidden states")]
    NoHidden {
        /// The row asked for.
        at: usize,
        /// How many there are.
        rows: usize,
    },
    /// A set of older weights that is not there.
    #[error("older side {at} of {sides}")]
    NoSide {
        /// The side asked for.
        at: usize,
        /// How many there are.
        sides: usize,
    },
    /// A tail that needs p_s, at a position without older weights.
    #[error("a tail on p_s at a position without older weights")]
    NoOlder,
    /// A drawn token outside the listed domain it was drawn from.
    #[error("drawn token {id} is not among the {listed} listed ids")]
    NotListed {
        /// The drawn token.
        id: u32,
        /// Number of listed ids.
        listed: usize,
    },
    /// A weight outside what a format holds.
    #[error("weight {at} is {value}, which Q8_0 cannot hold")]
    Weight {
        /// Its place.
        at: usize,
        /// Its value.
        value: f32,
    },
    /// A log ratio that is not finite.
    #[error("log ratio {at} is {value}")]
    Ratio {
        /// Its place.
        at: usize,
        /// Its value.
        value: f64,
    },
}
