//! The names of plans and rollouts in headers and paths.

use super::refusal::Refusal;
use axum::http::HeaderMap;
use lockstep_core::RolloutId;

/// Header with the number of the plan a request belongs to.
pub const PLAN_HEADER: &str = "x-plan-id";
/// Header with the rollouts a request samples, one an answer, separated by commas.
pub const ROLLOUT_HEADER: &str = "x-rollout-id";
/// Header with the conversation a request continues.
pub const SESSION_HEADER: &str = "x-session-id";

/// Reads a rollout's name, as in `p12.r3`.
///
/// # Errors
/// A text of another form.
pub fn rollout(text: &str) -> Result<RolloutId, Refusal> {
    let parts = text.strip_prefix('p').and_then(|rest| rest.split_once(".r"));
    let numbers = parts.and_then(|(plan, index)| Some((plan.parse().ok()?, index.parse().ok()?)));
    let id = numbers.map(|(plan, index)| RolloutId { plan, index });
    id.ok_or_else(|| Refusal::request(format!("{text:?} is no rollout id of the form p12.r3")))
}

/// The text of a header.
///
/// # Errors
/// A header that is not plain text.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Refusal> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    value.to_str().map(Some).map_err(|_| Refusal::request(format!("header {name} is not plain text")))
}

/// The rollouts a request names in its headers, if it does: by their names, or by their numbers within the plan it names.
///
/// # Errors
/// A name of another form, a plan without rollouts, or another plan than that of the rollouts.
pub fn named(headers: &HeaderMap) -> Result<Option<Vec<RolloutId>>, Refusal> {
    let plan = header(headers, PLAN_HEADER)?;
    let Some(rollouts) = header(headers, ROLLOUT_HEADER)? else {
        let plan = plan.map(|plan| format!("{PLAN_HEADER} is {plan}, but {ROLLOUT_HEADER} says no rollout of it"));
        return plan.map_or(Ok(None), |message| Err(Refusal::request(message)));
    };
    let wrong = |plan: &str| Refusal::request(format!("{PLAN_HEADER} is {plan:?}, not a number"));
    let number = plan.map(|plan| plan.parse::<u64>().map_err(|_| wrong(plan))).transpose()?;
    let read = |text: &str| match (number, text.parse()) {
        (Some(plan), Ok(index)) => Ok(RolloutId { plan, index }),
        _ => rollout(text),
    };
    let ids = rollouts.split(',').map(|id| read(id.trim())).collect::<Result<Vec<_>, _>>()?;
    if let Some(number) = number
        && let Some(other) = ids.iter().find(|id| id.plan != number)
    {
        return Err(Refusal::request(format!("rollout {other} is not of plan {number}, which {PLAN_HEADER} names")));
    }
    for (at, id) in ids.iter().enumerate() {
        if ids[..at].contains(id) {
            return Err(Refusal::request(format!("rollout {id} stands twice in {ROLLOUT_HEADER}")));
        }
    }
    Ok(Some(ids))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn read(plan: Option<&'static str>, rollouts: Option<&'static str>) -> Result<Option<Vec<RolloutId>>, String> {
        let mut headers = HeaderMap::new();
        plan.map(|plan| headers.insert(PLAN_HEADER, HeaderValue::from_static(plan)));
        rollouts.map(|rollouts| headers.insert(ROLLOUT_HEADER, HeaderValue::from_static(rollouts)));
        named(&headers).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn names_are_read_and_contradictions_refused() {
        let id = |index| RolloutId { plan: 12, index };
        assert_eq!(read(Some("12"), Some("p12.r3, p12.r4")), Ok(Some(vec![id(3), id(4)])));
        assert_eq!(read(None, Some("p12.r3")), Ok(Some(vec![id(3)])));
        assert_eq!(read(Some("12"), Some("3,4")), Ok(Some(vec![id(3), id(4)])));
        assert!(read(None, Some("3")).unwrap_err().contains("p12.r3"));
        assert_eq!(read(None, None), Ok(None));
        assert!(read(Some("11"), Some("p12.r3")).unwrap_err().contains("is not of plan 11"));
        assert!(read(Some("12"), None).unwrap_err().contains("says no rollout"));
        assert!(read(None, Some("12/3")).unwrap_err().contains("p12.r3"));
        assert!(read(None, Some("p1.r1,p1.r1")).unwrap_err().contains("stands twice"));
    }
}
