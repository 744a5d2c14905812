//! What a URL says, and what is said of one that is wrong.

use super::*;

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp { host: host.to_owned(), port }
}

fn unix(path: &str) -> Address {
    Address::Unix(path.to_owned())
}

#[track_caller]
fn check(url: &str, address: Address, login: Option<(Option<&str>, &str)>, database: u32) {
    let login =
        login.map(|(user, password)| Login { user: user.map(str::to_owned), password: password.to_owned() });
    assert!(Target::parse(url).unwrap() == Target { address, login, database }, "{url}");
}

#[test]
fn every_form_of_a_url_is_read() {
    check("redis://localhost", tcp("localhost", 6379), None, 0);
    check("REDIS://localhost/", tcp("localhost", 6379), None, 0);
    check("redis://limits.internal:7000/12", tcp("limits.internal", 7000), None, 12);
    check("redis://10.1.2.3:1?db=3", tcp("10.1.2.3", 1), None, 3);
    check("redis://[::1]", tcp("::1", 6379), None, 0);
    check("redis://:p@[2001:db8::7]:99/1", tcp("2001:db8::7", 99), Some((None, "p")), 1);
    check("redis://[fe80::1%25eth0]:1", tcp("fe80::1%eth0", 1), None, 0);
    check("redis://:secret@h", tcp("h", 6379), Some((None, "secret")), 0);
    check("redis://me:secret@h", tcp("h", 6379), Some((Some("me"), "secret")), 0);
    check("redis://me:@h", tcp("h", 6379), Some((Some("me"), "")), 0);
    check("redis://@h", tcp("h", 6379), None, 0);
    check("redis://:@h", tcp("h", 6379), None, 0);
    check("redis://m%40e:%2F%3A%25%c3%a4@h", tcp("h", 6379), Some((Some("m@e"), "/:%ä")), 0);
    check("redis://me:a:b@c@h", tcp("h", 6379), Some((Some("me"), "a:b@c")), 0);
    check("unix:///run/redis.sock", unix("/run/redis.sock"), None, 0);
    check("redis+unix:///a%20b?db=2&user=me&pass=%26", unix("/a b"), Some((Some("me"), "&")), 2);
    check("unix:///s?pass=x", unix("/s"), Some((None, "x")), 0);
}

/// Such a URL is refused for a reason that says so, and that repeats nothing of it.
#[track_caller]
fn check_refused(url: &str, says: &str) {
    let Error::Invalid { field, reason } = Target::parse(url).err().unwrap() else { panic!("{url}") };
    assert_eq!(field, "url");
    assert!(reason.contains(says), "{url}: {reason}");
    assert!(!reason.contains("hunter2"), "{reason}");
}

#[test]
fn a_bad_url_is_refused_without_repeating_its_password() {
    check_refused("", "no scheme");
    check_refused("localhost:6379", "no scheme");
    check_refused("hunter2", "no scheme");
    check_refused("http://:hunter2@h", "scheme is unknown");
    check_refused("rediss://:hunter2@h", "TLS");
    check_refused("redis://", "no host");
    check_refused("redis://:hunter2@", "no host");
    check_refused("redis://:hunter2@:6379", "no host");
    check_refused("redis://hunter2@h", "a user and no password");
    check_refused("redis://:hunter2@h:0", "its port");
    check_refused("redis://:hunter2@h:65536", "its port");
    check_refused("redis://:hunter2@h:+1", "its port");
    check_refused("redis://:hunter2/x@h", "no host");
    check_refused("redis://me:hunter2/x@h", "%2F");
    check_refused("redis://fe80::1", "IPv6 address goes in brackets");
    check_refused("redis://:hunter2@[::1", "a bracket");
    check_refused("redis://:hunter2@[hunter2]", "no IPv6 address");
    check_refused("redis://:hunter2@[::1]6379", "other than a port");
    check_refused("redis://:hunter2@h/x", "its database");
    check_refused("redis://:hunter2@h/-1", "its database");
    check_refused("redis://:hunter2@h/1/2", "its database");
    check_refused("redis://:hunter2@h/4294967296", "its database");
    check_refused("redis://:hunter2@h/1?db=2", "twice");
    check_refused("redis://:hunter2@h?timeout=1", "a parameter");
    check_refused("redis://:hunter2#@h", "%23");
    check_refused("redis://:hunter2 @h", "a space");
    check_refused("redis://:hunter2\n@h", "a space or a control character");
    check_refused("redis://:hunter2%@h", "%25");
    check_refused("redis://:hunter2%zz@h", "%25");
    check_refused("redis://:hunter2%+1@h", "%25");
    check_refused("redis://:hunter2%ff@h", "not UTF-8");
    check_refused("redis://:hunter2%00@h", "a zero");
    check_refused("unix://hunter2", "three slashes");
    check_refused("unix:///s?user=hunter2", "no password");
    check_refused("unix:///s?host=hunter2", "a parameter");
}

#[test]
fn what_is_shown_of_a_target_leaves_out_the_password() {
    for (url, shown, debug) in [
        ("redis://me:hunter2@h:1/5", "h:1", "Target { address: h:1, user: \"me\", database: 5, .. }"),
        (
            "redis://:hunter2@[::1]",
            "[::1]:6379",
            "Target { address: [::1]:6379, user: \"default\", database: 0, .. }",
        ),
        ("unix:///s?pass=hunter2", "/s", "Target { address: /s, user: \"default\", database: 0, .. }"),
        ("redis://h", "h:6379", "Target { address: h:6379, database: 0, .. }"),
    ] {
        let target = Target::parse(url).unwrap();
        assert_eq!(target.to_string(), shown);
        assert_eq!(format!("{target:?}"), debug);
    }
}
