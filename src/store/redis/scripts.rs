//! The texts of the scripts. Tests may give them another clock, and have them log what they grant.

use super::client::Probe;
use super::script::Script;

pub(super) struct Scripts {
    pub(super) admit: Script,
    pub(super) renew: Script,
    pub(super) release: Script,
    pub(super) pause: Script,
    pub(super) resume: Script,
}

const PRELUDE: &str = include_str!("scripts/prelude.lua");
const STATE: &str = include_str!("scripts/state.lua");

/// Stands where a script is done and has not answered yet.
const PROBED: &str = "-- (A test's own commands go here.)\n";

impl Scripts {
    pub(super) fn new(probe: &Probe) -> Scripts {
        let script = |parts: &[&str], log: &str| {
            let text = parts.concat();
            let clock = if probe.manual_time { include_str!("scripts/manual.lua") } else { "" };
            let text = match &probe.grants {
                None => text,
                Some((stream, worker)) => {
                    let names = format!("local stream, worker = {}, {}\n", literal(stream), literal(worker));
                    text.replace(PROBED, &format!("{names}{log}\n"))
                }
            };
            Script::new(format!("{clock}{PRELUDE}{text}"))
        };
        Scripts {
            admit: script(
                &[include_str!("scripts/short.lua"), STATE, include_str!("scripts/admit.lua")],
                include_str!("scripts/log_admit.lua"),
            ),
            renew: script(&[STATE, include_str!("scripts/renew.lua")], include_str!("scripts/log_renew.lua")),
            release: script(
                &[STATE, include_str!("scripts/release.lua")],
                include_str!("scripts/log_release.lua"),
            ),
            pause: script(&[STATE, include_str!("scripts/pause.lua")], ""),
            resume: script(&[STATE, include_str!("scripts/resume.lua")], ""),
        }
    }
}

/// As Lua writes it: each byte by its number.
fn literal(text: &str) -> String {
    let bytes: String = text.bytes().map(|byte| format!("\\{byte:03}")).collect();
    format!("'{bytes}'")
}
