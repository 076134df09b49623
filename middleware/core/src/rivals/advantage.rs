//! Advantages relative to a group of answers to one prompt, with each framework's standard deviation.

/// What `R - mean` is divided by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Deviation {
    /// Nothing: Dr. GRPO (arXiv 2503.20783), DeepSeek-V3.2, score centring.
    None,
    /// `std + epsilon`, with n - 1 under the root.
    Sample {
        /// Added to the deviation.
        epsilon: f64,
    },
    /// `std + epsilon`, with n under the root.
    Population {
        /// Added to the deviation.
        epsilon: f64,
    },
}

impl Deviation {
    /// GRPO (arXiv 2402.03300) as verl computes it.
    pub const VERL: Self = Self::Sample { epsilon: 1e-6 };
    /// As TRL does (`scale_rewards = "group"`).
    pub const TRL: Self = Self::Sample { epsilon: 1e-4 };
    /// As AReaL does (`masked_normalization`).
    pub const AREAL: Self = Self::Population { epsilon: 1e-5 };

    fn of(self, centred: &[f64]) -> f64 {
        let n = centred.len() as f64;
        let squares: f64 = centred.iter().map(|x| x * x).sum();
        match self {
            Self::None => 1.0,
            Self::Sample { epsilon } | Self::Population { epsilon } if centred.len() == 1 => 1.0 + epsilon,
            Self::Sample { epsilon } => (squares / (n - 1.0)).sqrt() + epsilon,
            Self::Population { epsilon } => (squares / n).sqrt() + epsilon,
        }
    }
}

/// Rewards that are none.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum AdvantageError {
    /// Not every reward has a group.
    #[error("{rewards} rewards, {groups} group ids")]
    Lengths {
        /// Rewards.
        rewards: usize,
        /// Group ids.
        groups: usize,
    },
    /// A reward that is no number.
    #[error("reward {reward} of answer {answer} is not finite")]
    NotFinite {
        /// Index of the answer.
        answer: usize,
        /// Its reward.
        reward: f64,
    },
}

/// GRPO and its kin: `A = (R - mean_group R) / (std_group R + epsilon)`.
///
/// A group of equal rewards gets exactly 0. A group of one keeps its reward (mean 0, deviation 1), as in verl.
///
/// # Errors
/// A reward that is not finite or has no group.
pub fn relative(rewards: &[f64], groups: &[usize], deviation: Deviation) -> Result<Vec<f64>, AdvantageError> {
    by_group(rewards, groups, |group| {
        let mean = if group.len() == 1 { 0.0 } else { group.iter().sum::<f64>() / group.len() as f64 };
        let centred: Vec<f64> = group.iter().map(|reward| reward - mean).collect();
        let divisor = deviation.of(&centred);
        centred.into_iter().map(|x| x / divisor).collect()
    })
}

/// RLOO (arXiv 2402.14740): `A = R - mean of the others = G / (G - 1) (R - mean)`; exactly 0 and the reward itself as above.
///
/// # Errors
/// As [`relative`].
pub fn leave_one_out(rewards: &[f64], groups: &[usize]) -> Result<Vec<f64>, AdvantageError> {
    by_group(rewards, groups, |group| {
        let (sum, others) = (group.iter().sum::<f64>(), group.len() as f64 - 1.0);
        group.iter().map(|reward| if others == 0.0 { *reward } else { reward - (sum - reward) / others }).collect()
    })
}

fn by_group(rewards: &[f64], groups: &[usize], of: impl Fn(&[f64]) -> Vec<f64>) -> Result<Vec<f64>, AdvantageError> {
    if rewards.len() != groups.len() {
        return Err(AdvantageError::Lengths { rewards: rewards.len(), groups: groups.len() });
    }
    if let Some(answer) = rewards.iter().position(|reward| !reward.is_finite()) {
        return Err(AdvantageError::NotFinite { answer, reward: rewards[answer] });
    }
    let mut advantages = vec![0.0; rewards.len()];
    for group in groups.iter().collect::<std::collections::BTreeSet<_>>() {
        let members: Vec<usize> = (0..groups.len()).filter(|&answer| groups[answer] == *group).collect();
        let of_group: Vec<f64> = members.iter().map(|&answer| rewards[answer]).collect();
        let equal = of_group.len() > 1 && of_group.iter().all(|reward| *reward == of_group[0]);
        let values = if equal { vec![0.0; of_group.len()] } else { of(&of_group) };
        members.into_iter().zip(values).for_each(|(answer, value)| advantages[answer] = value);
    }
    Ok(advantages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rewards_give_exactly_zero() {
        let (rewards, groups) = ([0.1; 3], [0; 3]);
        for deviation in [Deviation::None, Deviation::VERL, Deviation::TRL, Deviation::AREAL] {
            assert_eq!(relative(&rewards, &groups, deviation).unwrap(), [0.0; 3]);
        }
        assert_eq!(leave_one_out(&rewards, &groups).unwrap(), [0.0; 3]);
    }

    #[test]
    fn a_group_of_one_keeps_its_reward() {
        assert_eq!(relative(&[0.7], &[3], Deviation::VERL).unwrap(), [0.7 / (1.0 + 1e-6)]);
        assert_eq!(leave_one_out(&[0.7], &[3]).unwrap(), [0.7]);
    }

    #[test]
    fn each_framework_has_its_own_deviation() {
        let first = |deviation| relative(&[1.0, 0.0], &[0, 0], deviation).unwrap()[0];
        assert!((first(Deviation::VERL) - 0.5 / (0.5f64.sqrt() + 1e-6)).abs() < 1e-15);
        assert!((first(Deviation::TRL) - 0.5 / (0.5f64.sqrt() + 1e-4)).abs() < 1e-15);
        assert!((first(Deviation::AREAL) - 0.5 / (0.5 + 1e-5)).abs() < 1e-15);
    }

    #[test]
    fn what_is_no_reward_is_an_error() {
        let error = relative(&[0.0, f64::NAN], &[0, 0], Deviation::None).unwrap_err().to_string();
        assert_eq!(error, "reward NaN of answer 1 is not finite");
        assert!(leave_one_out(&[0.0], &[]).is_err());
    }
}
