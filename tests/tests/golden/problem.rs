//! A problem of five or so tokens as the vectors state it, in the words of the core.

use super::{compare::Golden, kernel};
use lockstep_core::{
    Support, TokenId,
    dlc::{
        Rule, TokenCorrection,
        loss::{DomainRow, Scale, dense_centring, loss},
        weigh,
        weigh::Position,
    },
    rivals::{Batch, Sequence},
    score::RowLogProbs,
    support::{Domain, Reported, Sampled},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{value}: {error}"))
}

pub fn log_sum_exp(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let max = values.clone().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY { max } else { max + values.map(|value| (value - max).exp()).sum::<f64>().ln() }
}

/// `log p_v = z_v / T - LSE(z / T)` over the given ids.
pub fn log_softmax(logits: &[f64], temperature: f64, ids: &[usize]) -> Vec<f64> {
    let tempered: Vec<f64> = ids.iter().map(|&id| logits[id] / temperature).collect();
    let normaliser = log_sum_exp(tempered.iter().copied());
    tempered.iter().map(|z| z - normaliser).collect()
}

/// The three distributions of one position over its domain, and what is known of q.
#[derive(Clone)]
pub struct Row {
    /// Ids of the domain.
    pub domain: Vec<usize>,
    pub log_q: Vec<f64>,
    pub log_s: Vec<f64>,
    pub log_theta: Vec<f64>,
    /// Places in the domain of the known entries.
    pub known: Vec<usize>,
    pub sampled: usize,
    pub scale: Scale,
    pub vocabulary: usize,
}

/// Every position of a vector, with the supports it states: kept ids, heads, or the whole vocabulary.
pub fn rows(golden: &Golden) -> Vec<Row> {
    let inputs = &golden.inputs;
    let temperature = read(&inputs["temperature"]);
    let logits = |key: &str| read::<Vec<Vec<f64>>>(&inputs[key]);
    let (theta, s, q) =
        (logits("trainer_logits"), logits("trainer_at_sampler_weights_logits"), logits("sampler_logits"));
    let (tokens, advantages) = (read::<Vec<usize>>(&inputs["tokens"]), read::<Vec<f64>>(&inputs["advantages"]));
    let listed = |key: &str| inputs.get(key).map(read::<Vec<Vec<usize>>>);
    let (supports, heads) = (listed("support_ids"), listed("head_ids"));
    let rows = tokens.iter().zip(advantages).enumerate();
    rows.map(|(t, (token, advantage))| {
        let vocabulary = theta[t].len();
        let domain = supports.as_ref().map_or_else(|| (0..vocabulary).collect(), |supports| supports[t].clone());
        let place = |id: &usize| domain.iter().position(|known| known == id).unwrap();
        Row {
            known: heads.as_ref().map_or_else(|| (0..domain.len()).collect(), |h| h[t].iter().map(place).collect()),
            log_q: log_softmax(&q[t], temperature, &domain),
            log_s: log_softmax(&s[t], temperature, &domain),
            log_theta: log_softmax(&theta[t], temperature, &domain),
            sampled: place(token),
            scale: Scale { advantage, temperature },
            domain,
            vocabulary,
        }
    })
    .collect()
}

/// The drawn tokens of the rows as sequences, masked as the vector states.
pub fn batch(golden: &Golden, rows: &[Row]) -> Batch {
    let of: Vec<usize> = read(&golden.inputs["sequence_of_token"]);
    let counts: Vec<u8> = read(&golden.inputs["loss_mask"]);
    let column = |i: usize, of_row: fn(&Row) -> f64| -> Vec<f64> {
        rows.iter().zip(&of).filter(|(_, sequence)| **sequence == i).map(|(row, _)| of_row(row)).collect()
    };
    let columns: Vec<_> = (0..=of.iter().copied().max().unwrap())
        .map(|i| {
            let mask: Vec<bool> = counts.iter().zip(&of).filter(|(_, s)| **s == i).map(|(c, _)| *c != 0).collect();
            let advantages = column(i, |row| row.scale.advantage);
            let drawn: [fn(&Row) -> f64; 3] =
                [|row| row.log_theta[row.sampled], |row| row.log_s[row.sampled], |row| row.log_q[row.sampled]];
            (drawn.map(|of_row| column(i, of_row)), advantages, mask)
        })
        .collect();
    let sequences = columns.iter().map(|([log_theta, log_s, log_q], advantages, mask)| Sequence {
        log_theta,
        log_s,
        log_q,
        advantages,
        mask,
    });
    Batch::new(&sequences.collect::<Vec<_>>()).unwrap()
}

impl Row {
    fn token(&self, place: usize) -> TokenId {
        TokenId(self.domain[place] as u32)
    }

    /// Log mass off the known entries; `None` when everything is known.
    pub fn log_rest(&self, log_p: &[f64]) -> Option<f64> {
        let off = (0..log_p.len()).filter(|at| !self.known.contains(at)).map(|at| log_p[at]);
        (self.known.len() < self.domain.len()).then(|| log_sum_exp(off))
    }

    pub fn support(&self) -> Support {
        let ids = self.known.iter().map(|&at| self.token(at)).collect();
        let log_q: Vec<f64> = self.known.iter().map(|&at| self.log_q[at]).collect();
        let log_rest = self.log_rest(&self.log_q);
        let domain = if log_rest.is_some() { Domain::Vocabulary(self.vocabulary as u32) } else { Domain::Listed };
        let sampled = Sampled { token: self.token(self.sampled), log_q: self.log_q[self.sampled] };
        Support::new(sampled, Reported { ids, log_q, log_rest, domain }).unwrap()
    }

    pub fn log_probs(&self, log_p: &[f64]) -> RowLogProbs {
        RowLogProbs {
            log_p: self.known.iter().map(|&at| log_p[at]).collect(),
            log_p_sampled: log_p[self.sampled],
            log_rest: self.log_rest(log_p),
        }
    }

    /// What a function of the position makes of it.
    pub fn with_position(&self, of: impl Fn(&Position<'_>) -> TokenCorrection) -> Corrected {
        let (support, log_s, log_theta) =
            (self.support(), self.log_probs(&self.log_s), self.log_probs(&self.log_theta));
        self.apply(of(&Position { support: &support, log_s: &log_s, log_theta: &log_theta }))
    }

    /// The drawn token weighted, nothing centred.
    pub fn weighted(&self, w: f64) -> Corrected {
        self.apply(TokenCorrection { w, c: vec![0.0; self.known.len()], tail: None })
    }

    pub fn correct(&self, rule: &Rule) -> Corrected {
        self.with_position(|position| weigh(position, rule).unwrap())
    }

    pub fn apply(&self, correction: TokenCorrection) -> Corrected {
        let Self { log_theta, log_s, known, sampled, .. } = self;
        let row = DomainRow { log_theta, log_s, known, sampled: *sampled };
        let mut over_domain = vec![0.0; self.domain.len()];
        let value = loss(&row, &correction, self.scale, &mut over_domain);
        kernel::check(self, &correction, (value, &over_domain));
        Corrected {
            weight: correction.w,
            centring: self.spread(&dense_centring(&row, &correction)),
            loss: value,
            gradient: self.spread(&over_domain),
        }
    }

    /// From the domain to the vocabulary: 0 off the domain.
    fn spread(&self, over_domain: &[f64]) -> Vec<f64> {
        let mut all = vec![0.0; self.vocabulary];
        self.domain.iter().zip(over_domain).for_each(|(&id, &value)| all[id] = value);
        all
    }
}

/// What a rule makes of one position.
pub struct Corrected {
    pub weight: f64,
    pub centring: Vec<f64>,
    pub loss: f64,
    pub gradient: Vec<f64>,
}
