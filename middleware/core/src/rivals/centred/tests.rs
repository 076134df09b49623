use super::*;
use crate::support::{Domain, Reported, Sampled};

fn ln(masses: &[f64]) -> Vec<f64> {
    masses.iter().map(|mass| mass.ln()).collect()
}

fn head(q: &[f64], rest: f64) -> Support {
    let ids = (0..q.len() as u32).map(TokenId).collect();
    let reported = Reported { ids, log_q: ln(q), log_rest: Some(rest.ln()), domain: Domain::Vocabulary(9) };
    Support::new(Sampled { token: TokenId(0), log_q: q[0].ln() }, reported).unwrap()
}

fn row(p: &[f64], rest: f64) -> RowLogProbs {
    RowLogProbs { log_p: ln(p), log_p_sampled: p[0].ln(), log_rest: Some(rest.ln()) }
}

#[test]
fn tails_at_the_floor_have_ratio_1() {
    let correction = centre(&head(&[0.5, 0.5], 1e-12), &row(&[0.25, 0.75], 1e-9), &TokenWeight::One).unwrap();
    let expected = [0.5 - 0.25, 0.5 - 0.75];
    assert!(correction.c.iter().zip(expected).all(|(c, e)| (c - e).abs() < 1e-15), "{:?}", correction.c);
}

#[test]
fn a_masked_token_is_centred_all_the_same() {
    let ids = vec![TokenId(0), TokenId(1)];
    let support = Support::exact(TokenId(0), ids, ln(&[0.2, 0.8])).unwrap();
    let log_p = RowLogProbs { log_rest: None, ..row(&[0.6, 0.4], 0.0) };
    let ipo = |eps| TokenWeight::Ipo { eps, cap: Cap::new(1e4).unwrap() };
    let correction = centre(&support, &log_p, &ipo(0.3)).unwrap();
    assert_eq!((correction.w, correction.c[0]), (0.0, 0.0));
    let correction = centre(&support, &log_p, &ipo(0.5)).unwrap();
    assert!((correction.w - 3.0).abs() < 1e-12 && (correction.c[1] - 0.4).abs() < 1e-15);
}

#[test]
fn what_is_not_defined_is_refused_by_name() {
    let (support, log_p) = (head(&[0.5, 0.4], 0.1), row(&[0.5, 0.4], 0.1));
    let ipo = TokenWeight::Ipo { eps: 0.3, cap: Cap::NONE };
    let error = centre(&support, &log_p, &ipo).unwrap_err().to_string();
    assert!(error.starts_with("ipo is not defined with a modelled tail"), "{error}");
    let without = RowLogProbs { log_rest: None, ..log_p.clone() };
    assert!(matches!(centre(&support, &without, &TokenWeight::One), Err(CentreError::NoRest(_))));
    let short = RowLogProbs { log_p: vec![], ..log_p.clone() };
    assert_eq!(centre(&support, &short, &TokenWeight::One), Err(CentreError::Entries { known: 2, log_p: 0 }));
    let nan = RowLogProbs { log_p_sampled: f64::NAN, ..log_p };
    assert!(matches!(centre(&support, &nan, &TokenWeight::One), Err(CentreError::Ratio { .. })));
}

#[test]
fn a_head_of_too_much_mass_is_refused() {
    let rule = CentredPpo::new(PpoClip::new(0.2, 0.2).unwrap(), 2.0).unwrap();
    let support = head(&[0.5, 0.4], 0.1);
    let weigh = |mass: f64| {
        let log_theta = row(&[0.5, mass - 0.5], 0.1);
        let log_s = row(&[0.5, 0.4], 0.1);
        rule.weigh(&Position { support: &support, log_s: &log_s, log_theta: &log_theta }, 1.0)
    };
    assert!(weigh(1.00005).is_ok());
    assert!(weigh(1.0002).unwrap_err().to_string().starts_with("the trainer's head mass 1.000"));
}
