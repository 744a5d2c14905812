//! Every cut of every kind of reply, and what is no reply.

use super::*;

/// However the bytes come, the end is found at the same place, and never before the last byte is there.
#[track_caller]
fn check(reply: &[u8]) {
    let stream = [reply, b"+next\r\n"].concat();
    assert_eq!(Scan::default().end(&stream), Ok(Some(reply.len())), "all at once, with more behind");
    for cut in 0..reply.len() {
        let mut scan = Scan::default();
        assert_eq!(scan.end(&reply[..cut]), Ok(None), "cut at {cut}");
        assert_eq!(scan.end(&stream), Ok(Some(reply.len())), "went on after a cut at {cut}");
    }
    let mut scan = Scan::default();
    for end in 0..reply.len() {
        assert_eq!(scan.end(&reply[..end]), Ok(None), "byte by byte, {end}");
    }
    assert_eq!(scan.end(reply), Ok(Some(reply.len())));
}

#[test]
fn the_end_of_a_reply_is_found_wherever_it_is_cut() {
    check(b"+OK\r\n");
    check(b"+\r\n");
    check(b"-ERR no such thing\r\n");
    check(b":-42\r\n");
    check(b"$0\r\n\r\n");
    check(b"$-1\r\n");
    check(b"$5\r\na\r\nb\r\r\n");
    check(b"*0\r\n");
    check(b"*-1\r\n");
    check(b"*2\r\n$4\r\n1000\r\n$1\r\n7\r\n");
    check(b"*3\r\n*0\r\n*2\r\n:1\r\n*1\r\n$-1\r\n+last\r\n");
    check(b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n");
}

#[test]
fn what_is_no_reply_is_refused_before_it_is_read() {
    let deep = b"*1\r\n".repeat(9);
    let many = [&b"*1000000\r\n"[..], &b":1000000\r\n".repeat(250_000)].concat();
    let endless = [b"+".as_slice(), &[b'a'; LINE_MAX]].concat();
    for (bytes, reason) in [
        (b"HTTP/1.1 400 Bad Request\r\n".as_slice(), "it does not begin like a reply of Redis"),
        (b"\r\n", "it does not begin like a reply of Redis"),
        (b"*1\r\nx\r\n", "it does not begin like a reply of Redis"),
        (b"$999999999999\r\n", "it is larger than any that was asked for"),
        (b"*999999999\r\n", "it is larger than any that was asked for"),
        (b"$99999999999999999999999999\r\n", "a length is not a number"),
        (b"$-2\r\n", "a length is not a number"),
        (b"$+1\r\n", "a length is not a number"),
        (b"*\r\n", "a length is not a number"),
        (b"$2\r\nabcd", "a text does not end where its length says"),
        (&deep, "arrays are nested too deep"),
        (&many, "it is larger than any that was asked for"),
        (&endless, "a line has no end"),
    ] {
        assert_eq!(Scan::default().end(bytes), Err(reason), "{:?}", String::from_utf8_lossy(bytes));
    }
}
