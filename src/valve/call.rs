//! What one call asks for.

use super::cancel::CancelToken;
use std::time::Duration;

/// The options of one call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) priority: i32,
    pub(super) cost: u32,
    pub(super) max_wait: Option<Duration>,
    pub(super) token: Option<&'a CancelToken>,
    /// It does not wait: it takes the first answer, whatever that is.
    pub(super) instant: bool,
}

impl Call<'_> {
    pub(super) const PLAIN: Call<'static> =
        Call { priority: 0, cost: 1, max_wait: None, token: None, instant: false };
    pub(super) const INSTANT: Call<'static> = Call { instant: true, ..Call::PLAIN };

    /// Whether the options say more than a cost: then the call cannot take the shortest way.
    pub(super) fn is_quick(&self) -> bool {
        self.token.is_none()
    }
}
