//! How many bytes a token costs.

use super::*;

const TOKENS: u32 = 64;

/// Bytes of the frame of a delta whose every token has `kept` ids, per token.
fn bytes_a_token(kept: u32) -> f64 {
    let mut behavior = BehaviorDistribution::default();
    for token in 0..TOKENS {
        let ids = (token..token + kept).map(TokenId).collect();
        let log_q = vec![-f64::from(kept).ln(); kept as usize];
        behavior.push(&Support::exact(TokenId(token), ids, log_q).unwrap());
    }
    let delta = Delta { behavior, ..delta(0) };
    let frame = encode_frame(&Record::Delta(DeltaRecord::new(&delta, 0))).unwrap();
    frame.len() as f64 / f64::from(TOKENS)
}

#[test]
fn eight_kept_ids_cost_at_most_75_bytes_and_a_singleton_little_more_than_its_id() {
    let (eight, one) = (bytes_a_token(8), bytes_a_token(1));
    assert!(eight <= 75.0, "{eight} bytes a token at 8 kept ids");
    assert!(one <= 7.0, "{one} bytes a token of a singleton");
    // What a delta costs beside its tokens, and what is left for one: its id and a bit.
    let frame = encode_frame(&Record::Delta(DeltaRecord::new(
        &Delta { behavior: BehaviorDistribution::default(), ..delta(0) },
        0,
    )));
    let framing = frame.unwrap().len() as f64 / f64::from(TOKENS);
    assert_eq!(one - framing, 4.125);
}

#[test]
fn columns_come_back_bit_by_bit_also_where_exact_rows_say_something_of_their_own() {
    let mut record = DeltaRecord::new(&delta(0), 0);
    let compact = encode_frame(&Record::Delta(record.clone())).unwrap();
    let rest = record.columns.rest.as_mut().unwrap();
    rest.log_q_sampled[0] = -0.0;
    let every = encode_frame(&Record::Delta(record.clone())).unwrap();
    assert!(every.len() > compact.len());
    let (Record::Delta(back), _) = decode_frame(&every).unwrap() else { panic!("not a delta") };
    let bits = |record: &DeltaRecord| {
        let rest = record.columns.rest.clone().unwrap();
        rest.log_q_sampled.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
    };
    assert_eq!((bits(&back), &back), (bits(&record), &record));
}

#[test]
fn a_row_of_a_whole_vocabulary_comes_back() {
    let mut behavior = BehaviorDistribution::default();
    let ids: Vec<TokenId> = (0..151_936).map(TokenId).collect();
    let log_q = vec![-(ids.len() as f64).ln(); ids.len()];
    behavior.push(&Support::exact(TokenId(77), ids, log_q).unwrap());
    behavior.push(&Support::singleton(TokenId(5)));
    let record = Record::Delta(DeltaRecord::new(&Delta { behavior, ..delta(0) }, 0));
    assert_eq!(decode_frame(&encode_frame(&record).unwrap()).unwrap().0, record);
}
