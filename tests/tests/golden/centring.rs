//! Score centring with a weight of the full ratio.

use super::{
    compare::Golden,
    corrections::{check_corrected, score_centring},
    problem::{Corrected, Row, read, rows},
};
use lockstep_core::rivals::{
    Band, Cap,
    centred::{TokenWeight, centre},
};
use serde_json::Value;

/// f of a vector: as it states it in a parameter, in words (`min(r,C)`, `lo<=r<=hi`), or 1.
fn weight(golden: &Golden) -> TokenWeight {
    let parameter = |key: &str| golden.inputs[key].as_f64();
    let stated = golden.inputs["weight"].as_str().unwrap_or(&golden.description);
    let number = |text: &str| -> f64 { text.trim().parse().unwrap() };
    let cap = |cap: f64| Cap::new(cap).unwrap();
    if let Some(largest) = parameter("max_importance_ratio") {
        return TokenWeight::Ipo { eps: parameter("eps").unwrap(), cap: cap(largest) };
    }
    if let Some(stated) = parameter("cap") {
        return TokenWeight::Truncated(cap(stated));
    }
    if let Some((_, after)) = stated.split_once("min(r,") {
        return TokenWeight::Truncated(cap(number(after.split(')').next().unwrap())));
    }
    match stated.split_once("<=r<=") {
        Some((before, after)) => {
            let (low, high) =
                (before.rsplit([' ', '[']).next().unwrap(), after.split([' ', ']', ';', ',']).next().unwrap());
            TokenWeight::Masked(Band::new(number(low), number(high)).unwrap())
        }
        None => TokenWeight::One,
    }
}

pub fn weighted_centring(golden: &Golden) {
    let (rows, weight) = (rows(golden), weight(golden));
    let corrected: Vec<Corrected> = rows
        .iter()
        .map(|row| row.apply(centre(&row.support(), &row.log_probs(&row.log_theta), &weight).unwrap()))
        .collect();
    check_corrected(golden, &corrected);
    let each = |of: &dyn Fn(&Row) -> Value| rows.iter().map(of).collect::<Vec<Value>>();
    let drawn = |row: &Row| (row.log_theta[row.sampled], row.log_q[row.sampled]);
    golden.check_if_given("ratio_token", each(&|row| (drawn(row).0 - drawn(row).1).exp().into()));
    golden.check_if_given("logp_support_token", each(&|row| drawn(row).0.into()));
    golden.check_if_given("token_masked", corrected.iter().map(|row| row.weight == 0.0).collect::<Vec<bool>>());
    tails(golden, &rows, weight);
}

/// As a form of DLC at zero lag, and as a rule of its own.
pub fn over_a_head(golden: &Golden) {
    score_centring(golden);
    weighted_centring(golden);
}

fn tails(golden: &Golden, rows: &[Row], weight: TokenWeight) {
    if golden.inputs.get("head_ids").is_none() {
        return;
    }
    golden.check("head_ids", read::<Vec<Vec<usize>>>(&golden.inputs["head_ids"]));
    let tail = |row: &Row, log_p: &[f64]| row.log_rest(log_p).unwrap().exp();
    let heads = |of: fn(&Row) -> &[f64]| rows.iter().map(|row| 1.0 - tail(row, of(row))).collect::<Vec<f64>>();
    golden.check("p_head_mass", heads(|row| &row.log_theta));
    golden.check("q_head_mass", heads(|row| &row.log_q));
    golden.check("ps_head_mass", heads(|row| &row.log_s));
    let rho: Vec<f64> = rows.iter().map(|row| tail(row, &row.log_q) / tail(row, &row.log_theta)).collect();
    let alpha: Vec<f64> = rho.iter().map(|rho| rho * weight.of(-rho.ln(), 0.0)).collect();
    golden.check("rho", rho);
    golden.check("alpha", alpha);
}
