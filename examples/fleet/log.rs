//! The log that the scripts wrote beside what they decided, in the order in which the server ran them.

use r2d2_redis::redis::streams::{StreamId, StreamRangeReply};
use r2d2_redis::redis::{Connection, cmd};

use crate::{Failure, Site, Us};

/// One line of the log.
pub(crate) struct Entry {
    /// When, by the server's clock.
    pub(crate) at: Us,
    /// Whose script it was.
    pub(crate) worker: String,
    /// The lease.
    pub(crate) token: Vec<u8>,
    pub(crate) what: What,
}

pub(crate) enum What {
    /// A job was started, under this fencing token.
    Grant {
        fence: u64,
    },
    Renewal,
    Release,
}

/// Reads the whole log, and removes all that the fleet left on the server.
pub(crate) fn take(server: &mut Connection, site: &Site) -> Result<Vec<Entry>, Failure> {
    let grants = site.log_key();
    let leases = format!("{grants}:leases");
    let mut log = Vec::new();
    for key in [&grants, &leases] {
        let entries: StreamRangeReply = cmd("XRANGE").arg(key).arg("-").arg("+").query(server)?;
        let entries = entries.ids.iter().map(Entry::read).collect::<Result<Vec<_>, _>>()?;
        if !entries.is_sorted_by_key(|entry| entry.at) {
            return Err("the server's clock went back meanwhile: nothing can be judged by it".into());
        }
        log.extend(entries);
    }
    // No two scripts run in the same microsecond, and one that releases and grants does so in this order.
    log.sort_by_key(|entry| (entry.at, entry.fence()));
    let state = site.state_key();
    let _: usize = cmd("DEL").arg(&[&grants, &leases, &state, &format!("{state}:l")]).query(server)?;
    Ok(log)
}

impl Entry {
    /// The fencing token, if a job was started.
    pub(crate) fn fence(&self) -> Option<u64> {
        match self.what {
            What::Grant { fence } => Some(fence),
            What::Renewal | What::Release => None,
        }
    }

    fn read(entry: &StreamId) -> Result<Entry, Failure> {
        let lacks = |name: &str| format!("an entry of the log has no {name}");
        let text = |name: &str| entry.get::<String>(name).ok_or_else(|| lacks(name));
        let what = match entry.get::<String>("kind").as_deref() {
            None => What::Grant { fence: text("fence")?.parse()? },
            Some("renew") => What::Renewal,
            Some("release") => What::Release,
            Some(kind) => return Err(format!("an entry of the log is a {kind}").into()),
        };
        let token = entry.get("token").ok_or_else(|| lacks("token"))?;
        Ok(Entry { at: text("time")?.parse()?, worker: text("worker")?, token, what })
    }
}
