//! Holds the pages that users read to what they must say: caveats and what is not promised, too.

use crate::repository::{read, rust_files};

/// What must be said, and a phrase of the page that says it.
const SAID: &[(&str, &str)] = &[
    ("T07", "Redis 6.2 or newer"),
    ("T10", "A call has 500 ms for everything it does (`RedisBuilder::timeout`)"),
    ("V02", "No bound says when a job ends"),
    ("V03", "No bound says when a request reaches the provider, nor how the provider counts it"),
    ("V10", "Two adjoining windows may together pass nearly twice the limit"),
    ("V14", "Timers may fire late, and no bound on lateness is given"),
    ("V14", "A start is never before its rule allows"),
    ("V16", "small delays add up in a queue that is always full"),
    ("V21", "A start is the store's grant. The closure, and the request it sends, come later"),
    ("V23", "A grant made before the pause may still start"),
    ("V27", "learns of a `resume` elsewhere by its next call to the store"),
    ("V36", "A time limit does not recall a command that is on its way"),
    ("V37", "There is no queue of commands for a server that is away"),
    ("V37", "a time limit for each command, and no offline queue"),
    ("V38", "nothing is promised to be executed exactly once"),
    ("V42", "What is left of a call that timed out"),
    ("V46", "A batch that is already on its way to the store may be granted before a job of higher priority"),
    ("V47", "between processes there is neither order nor fairness"),
    ("V58", "A lease says who holds a slot, not what a job that lost it still does"),
    (
        "V58",
        "A process that was frozen for longer than its TTL wakes up when another may have its slot, and can act before it looks",
    ),
    ("V59", "A job must heed its abort"),
    ("V59", "The error that comes afterwards undoes nothing"),
    ("V60", "That an effect happens exactly once is not promised"),
    ("V65", "do not hold meanwhile"),
    ("V67", "every rule has its full budget again, and there is no pause"),
    ("V68", "The provider's own window did not start afresh"),
    ("V69", "lost rate history cannot be detected"),
    ("V70", "lost leases are noticed at the next renewal"),
    ("V71", "with a limit of 2, up to 4 jobs run"),
    ("V72", "What makes that rarer: `appendonly yes`"),
    ("V73", "the provider's own enforcement is the hard limit to rely on"),
    ("V74", "Queued jobs are in memory"),
    ("V74", "They die with the process, and nothing of them is in the store"),
    ("V75", "Work that must survive belongs in a durable job queue whose workers call the valve"),
];

#[test]
fn the_guarantees_page_says_what_it_must() {
    let page = one_line(&read("src/guarantees.md"));
    let unsaid: Vec<_> = SAID.iter().filter(|(_, phrase)| !page.contains(phrase)).collect();
    assert!(unsaid.is_empty(), "not said: {unsaid:#?}");

    // The page opens with what its bounds do not measure.
    let opening = page.split(" # ").next().unwrap();
    let scope =
        |id: &str| SAID.iter().filter(move |(of, _)| *of == id).all(|(_, phrase)| opening.contains(phrase));
    assert!(scope("V02") && scope("V03"), "the opening does not say what no bound measures: {opening}");
}

/// The same of the throttle, in the comments that become its pages.
const SAID_OF_THROTTLES: &[(&str, &str)] = &[
    ("T09", ".wait_finish().timeout(Duration::from_secs(3)).exec()?"),
    ("T09", "// At shutdown, from any thread."),
    ("T11", "close its client after this"),
    ("T15", "together by equal ones: those should have equal windows too"),
    ("T33", ".log(Log::to(move |record|"),
    ("T39", "A call that was left to a later run never learns how that went"),
    (
        "T42",
        "so the value may stem from a newer one than this call's own: fine for closures that compute from the source",
    ),
    ("T45", "```compile_fail"),
    ("T63", "Expiry goes by the monotonic clock, so the system's time may jump as it likes"),
    ("T79", "Only the atomic write-if-absent keeps two instances from running one key at once"),
    ("T80", "Do not retry, do not fall back"),
    ("T81", "The throttle does not time them"),
    ("T81", "So give your client a timeout of its own"),
    ("T81", "An engine over another client"),
    ("T89", "There is no second engine to fall back to, on purpose"),
    ("T98", "Err(ThrottleError::Timeout { key, .. }) => assert_eq!(key, \"42\"), // it will run; move on"),
    ("T99", "keep a periodic full pass for what must not be missed"),
    (
        "T100",
        "The process exiting, or [`destroy`](ThrottleWindow::destroy), does lose them, and nothing of them is in the engine",
    ),
    ("T101", "Inside a run do not wait for another thread, or another key, whose own run waits for this one"),
    ("T102", "a call that never returns keeps its key busy for ever"),
    (
        "T104",
        "In production, write to something: a failed trailing run that nobody waits for is seen nowhere else",
    ),
    ("T105", "The rest wait until one is over, and are late, not lost"),
    ("T106", "One that is off moves the time at which the loser of a race tries again"),
    ("T107", "it should compute from the source, not from what was true when the call was made"),
    ("T108", "#[must_use = \"tells whether the run is over or still to come\"]"),
];

#[test]
fn the_throttles_pages_say_what_they_must() {
    let pages = rust_files(&["src/throttle", "src/throttle.rs"]);
    let lines = pages.iter().flat_map(|page| page.text.lines());
    let text: String = lines
        .map(|line| line.trim().trim_start_matches("///").trim_start_matches("//!"))
        .map(|line| format!("{line} "))
        .collect();
    let text = one_line(&text);
    let unsaid: Vec<_> = SAID_OF_THROTTLES.iter().filter(|(_, phrase)| !text.contains(phrase)).collect();
    assert!(unsaid.is_empty(), "not said: {unsaid:#?}");
}

/// Without line breaks and marks of emphasis, which may fall anywhere.
fn one_line(text: &str) -> String {
    text.replace("**", "").split_whitespace().collect::<Vec<_>>().join(" ")
}
