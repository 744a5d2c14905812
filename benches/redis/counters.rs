//! What a server says of itself.

use std::time::Duration;

use r2d2_redis::redis::{Connection, cmd};

use crate::Failure;

/// Since the server's start.
#[derive(Clone, Copy)]
pub(crate) struct Counters {
    pub(crate) scripts: u64,
    /// User and system.
    pub(crate) cpu: Duration,
}

impl Counters {
    pub(crate) fn read(connection: &mut Connection) -> Result<Counters, Failure> {
        let info: String = cmd("INFO").arg("everything").query(connection)?;
        let value = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let seconds = |name: &str| -> Result<f64, Failure> {
            Ok(value(name).ok_or_else(|| format!("INFO does not say {name}"))?.parse()?)
        };
        let calls =
            value("cmdstat_evalsha").and_then(|stats| stats.strip_prefix("calls=")?.split(',').next());
        Ok(Counters {
            scripts: calls.unwrap_or("0").parse()?,
            cpu: Duration::from_secs_f64(seconds("used_cpu_user")? + seconds("used_cpu_sys")?),
        })
    }

    pub(crate) fn since(self, earlier: Counters) -> Counters {
        Counters { scripts: self.scripts - earlier.scripts, cpu: self.cpu - earlier.cpu }
    }
}
