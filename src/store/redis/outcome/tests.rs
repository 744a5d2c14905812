//! Error replies as servers of versions 6 and 7 send them.

use super::*;

const SCRIPT: &str = "script: 7b2d9c0b9a, on @user_script:12.";

#[track_caller]
fn check(line: &str, kind: Kind, executed: Executed, says: &str) {
    let error = refused(line, "redis.internal:6379");
    assert_eq!((error.kind(), error.executed()), (kind, executed), "{line}");
    let text = error.to_string();
    assert!(text.contains(says) && text.contains("redis.internal:6379"), "{text}");
}

#[test]
fn an_error_before_the_script_runs_is_definite() {
    use Executed::No;
    for (line, kind, says) in [
        ("LOADING Redis is loading the dataset in memory", Kind::Busy, "is loading"),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", Kind::Busy, "SCRIPT KILL"),
        (
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            Kind::Busy,
            "lost its master",
        ),
        (
            "READONLY You can't write against a read only replica.",
            Kind::ReadOnly,
            "point the URL at the master",
        ),
        ("NOREPLICAS Not enough good replicas to write.", Kind::ReadOnly, "min-replicas-to-write"),
        ("MISCONF Redis is configured to save RDB snapshots, but", Kind::ReadOnly, "see its log"),
        ("OOM command not allowed when used memory > 'maxmemory'.", Kind::OutOfMemory, "raise it"),
        ("NOAUTH Authentication required.", Kind::Auth, "into the URL"),
        ("WRONGPASS invalid username-password pair or user is disabled.", Kind::Auth, "correct it"),
        ("NOPERM this user has no permissions to run the 'evalsha' command", Kind::Permission, "ACL SETUSER"),
        ("NOPERM User me has no permissions to run the 'evalsha' command", Kind::Permission, "'evalsha'"),
        ("ERR max number of clients reached", Kind::Busy, "maxclients"),
        ("ERR max number of clients + cluster connections reached", Kind::Busy, "maxclients"),
        ("ERR unknown command `EVALSHA`, with args beginning with: `7b2d`", Kind::Permission, "6.2 or newer"),
        ("ERR DB index is out of range", Kind::Other, "no such database"),
        ("ERR wrong number of arguments for 'evalsha' command", Kind::Other, "wrong number"),
        ("CLUSTERDOWN Hash slot not served", Kind::Busy, "a cluster"),
        ("MOVED 3999 127.0.0.1:6381", Kind::Other, "a cluster"),
        ("ASK 3999 127.0.0.1:6381", Kind::Other, "a cluster"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Kind::Busy, "a cluster"),
        ("CROSSSLOT Keys in request don't hash to the same slot", Kind::Other, "a cluster"),
        ("NOSCRIPT No matching script. Please use EVAL.", Kind::Other, "forgets each script"),
        ("CORRUPT key valve:{a} field v1", Kind::Corrupt, "valve:{a}"),
    ] {
        check(line, kind, No, says);
    }
}

#[test]
fn an_error_from_inside_a_script_is_definite_only_if_nothing_can_be_spent_by_then() {
    use Executed::{No, Unknown};
    for (line, kind, executed) in [
        (format!("OOM command not allowed when used memory > 'maxmemory'. {SCRIPT}"), Kind::OutOfMemory, No),
        (format!("READONLY You can't write against a read only replica. {SCRIPT}"), Kind::ReadOnly, No),
        (format!("NOREPLICAS Not enough good replicas to write. {SCRIPT}"), Kind::ReadOnly, No),
        (format!("WRONGTYPE Operation against a key holding the wrong kind of value {SCRIPT}"), Kind::Corrupt, No),
        (format!("NOPERM this user has no permissions to run the 'time' command {SCRIPT}"), Kind::Permission, No),
        (format!("NOPERM this user has no permissions to run the 'hset' command {SCRIPT}"), Kind::Permission, Unknown),
        (
            format!("ERR The user executing the script can't run this command or subcommand {SCRIPT}"),
            Kind::Permission,
            Unknown,
        ),
        (format!("ERR user_script:3: attempt to index a nil value {SCRIPT}"), Kind::Other, Unknown),
        (format!("SOMETHING new {SCRIPT}"), Kind::Other, Unknown),
        ("SOMETHING new".to_owned(), Kind::Other, Unknown),
        // Redis 6 puts what the script met behind the place in the script.
        (
            "ERR Error running script (call to f_7b2d): @user_script:3: @user_script: 3: -OOM command not allowed"
                .to_owned(),
            Kind::OutOfMemory,
            No,
        ),
        (
            "ERR Error running script (call to f_7b2d): @user_script:3: user_script:3: attempt to index a nil value"
                .to_owned(),
            Kind::Other,
            Unknown,
        ),
    ] {
        check(&line, kind, executed, "");
    }
}

#[test]
fn only_so_much_is_quoted_and_no_control_characters() {
    let text = refused(&format!("ERR \x1b[31m{}", "x".repeat(10_000)), "h").to_string();
    assert!(text.len() < 500 && !text.contains('\x1b'), "{text}");
    let text = login_refused("-a hunter2", "h").to_string();
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn a_failed_connection_says_what_to_look_at() {
    for (kind, says) in [
        (io::ErrorKind::ConnectionRefused, "see that the server runs"),
        (io::ErrorKind::TimedOut, "see that the network"),
        (io::ErrorKind::NotFound, "correct the URL"),
        (io::ErrorKind::PermissionDenied, "see the rights"),
        // What a name that nobody knows gives has no kind of its own.
        (io::ErrorKind::Other, "see that its name can be looked up"),
    ] {
        let error = unconnected(kind.into(), "h:1");
        assert_eq!((error.kind(), error.executed()), (Kind::Unreachable, Executed::No));
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_connection_that_fails_says_what_to_look_at() {
    for (kind, means, says) in [
        (io::ErrorKind::TimedOut, Kind::Timeout, "or allow more"),
        (io::ErrorKind::UnexpectedEof, Kind::Unreachable, "see its log"),
        (io::ErrorKind::ConnectionReset, Kind::Unreachable, "see the network"),
    ] {
        let error = unanswered(kind.into(), "h:1", Executed::Unknown);
        assert_eq!((error.kind(), error.executed()), (means, Executed::Unknown));
        assert!(error.to_string().contains(says) && error.to_string().contains("h:1"), "{error}");
    }
}
