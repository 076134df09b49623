//! When a plan may be trained on, and when it is closed. Looks at whole plans alone.

use super::{Action, Dispatch, DispatchError};
use crate::token::RolloutId;

impl Dispatch {
    pub(super) fn judge(&mut self, rollout: RolloutId) -> Result<(), DispatchError> {
        let answer = self.find(rollout)?;
        if !answer.judged {
            answer.judged = true;
            if let Some(open) = self.plans.get_mut(&rollout.plan) {
                open.unjudged -= 1;
            }
        }
        Ok(())
    }

    pub(super) fn consume(&mut self, plan: u64) -> Result<(), DispatchError> {
        let open = self.plans.get(&plan).ok_or(DispatchError::NoPlan(plan))?;
        if !open.released {
            return Err(DispatchError::NotReleased(plan));
        }
        self.plans.remove(&plan);
        Ok(())
    }

    /// Releases what is sealed and judged, as far as the window reaches beyond the oldest plan that is not released.
    pub(super) fn release(&mut self, actions: &mut Vec<Action>) {
        loop {
            let Some((&oldest, _)) = self.plans.iter().find(|(_, open)| !open.released) else { return };
            let reach = oldest..oldest + self.rules.window();
            let ready = self.plans.range_mut(reach).find(|(_, open)| {
                let complete = open.unfinished == 0 && open.unjudged == 0;
                !open.released && complete && open.failure.is_none()
            });
            let Some((&plan, open)) = ready else { return };
            open.released = true;
            actions.push(Action::Release { plan });
        }
    }
}
