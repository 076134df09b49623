//! The checks: those of the four fixes, those of the two terms, those of the correction.

pub mod batch;
pub mod correction;
pub mod distribution;
pub mod end;
pub mod lag;
pub mod numeric;
pub mod tokens;
pub mod version;

mod question;
mod recorded;
pub(crate) mod tilted;

use crate::check::Check;

/// Checks that train, and run only when asked for.
pub const DEEP: [Check; 1] = [end::DIVERGENCE];

/// Every other check, in the order they run.
pub const ALL: [Check; 36] = [
    distribution::drawn::DRAWN,
    distribution::agreement::AGREEMENT,
    distribution::support::SUPPORT,
    distribution::filters::FILTERS,
    distribution::ties::TIES,
    distribution::defaults::DEFAULTS,
    distribution::greedy::GREEDY,
    distribution::temperature::TEMPERATURE,
    distribution::seed::SEED,
    tokens::identity::IDENTITY,
    tokens::ends::ENDS,
    tokens::vocabulary::VOCABULARY,
    tokens::template::TEMPLATE,
    batch::membership::MEMBERSHIP,
    batch::outcomes::OUTCOMES,
    batch::denominator::DENOMINATOR,
    version::repeat::REPEAT,
    version::evidence::EVIDENCE,
    version::update::UPDATE,
    version::cache::CACHE,
    numeric::size::SIZE,
    numeric::bias::BIAS,
    numeric::outliers::OUTLIERS,
    numeric::drift::DRIFT,
    numeric::batch::BATCH,
    numeric::prefill::PREFILL,
    numeric::turns::TURNS,
    numeric::updates::UPDATES,
    lag::zero::ZERO,
    lag::denominator::DENOMINATOR,
    lag::temperature::TEMPERATURE,
    lag::support::SUPPORT,
    correction::gradient::GRADIENT,
    correction::drift::DRIFT,
    correction::weights::WEIGHTS,
    correction::ess::ESS,
];
