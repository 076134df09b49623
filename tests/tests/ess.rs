//! One effective sample size: the kernel's, which a card computes as well, is the one that triggers a synchronisation.

use lockstep_core::dlc::ess::effective_sample_size;
use lockstep_kernels::ess::ratio_statistics;
use proptest::prelude::*;

proptest! {
    #[test]
    fn the_kernel_and_the_trigger_agree(answers in prop::collection::vec(prop::collection::vec(-30.0..30.0f64, 0..40), 1..600)) {
        let lags = answers.concat();
        prop_assume!(!lags.is_empty());
        let ends = answers.iter().scan(0, |end, answer| { *end += answer.len() as u32; Some(*end) });
        let offsets: Vec<u32> = std::iter::once(0).chain(ends).collect();
        let sums: Vec<f64> = answers.iter().filter(|answer| !answer.is_empty()).map(|answer| answer.iter().sum()).collect();
        let found = ratio_statistics(&lags, &offsets, (0.0, 2.0)).unwrap();
        for (kernel, trigger) in [(found.ess_token, effective_sample_size(&lags)), (found.ess_sequence, effective_sample_size(&sums))] {
            let trigger = trigger.unwrap();
            prop_assert!((kernel - trigger).abs() <= 1e-9 * trigger, "{kernel} and {trigger}");
        }
    }
}
