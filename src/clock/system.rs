//! stub until the real one lands
use super::Tick;
use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
static START: LazyLock<Instant> = LazyLock::new(Instant::now);
pub(crate) fn now() -> Tick { START.elapsed().as_micros() as u64 + 1 }
pub(crate) fn wall() -> u64 { SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64) }
pub(crate) fn refine() {}
