//! Time limits of sockets, and addresses that do not answer.

use super::*;
use crate::clock::Clock;
use crate::store::redis::link::fake::within_ms;
use std::net::TcpListener;

#[test]
fn the_time_limit_is_never_more_than_what_is_left_and_seldom_changes() {
    for (left, expected) in [(500_000, 262_144), (300_000, 262_144), (200_000, 131_072)] {
        let deadline = Deadline::after(&Clock::System, Duration::from_micros(left));
        assert_eq!(limit(&deadline).unwrap(), expected);
    }
    let short = limit(&Deadline::after(&Clock::System, Duration::from_micros(900))).map_or(0, |limit| limit);
    assert!(short <= 900);
    assert_eq!(limit(&within_ms(0)).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(limit(&Deadline::never()).unwrap(), 1 << 31);
}

#[test]
fn a_port_where_nobody_listens_refuses_at_once() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let target = Target::parse(&format!("redis://{closed}")).unwrap();
    let error = Stream::connect(&target, &within_ms(60_000)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_name_without_an_address_is_an_error() {
    let target = Target::parse("redis://no-such-host.invalid").unwrap();
    assert!(Stream::connect(&target, &within_ms(60_000)).is_err());
}

#[test]
fn each_address_of_a_host_is_tried() {
    // Nobody listens on the IPv6 address, if the machine has one.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let target = Target::parse(&format!("redis://localhost:{port}")).unwrap();
    assert!(Stream::connect(&target, &within_ms(60_000)).is_ok());
}

#[cfg(unix)]
#[test]
fn a_unix_socket_is_spoken_to_alike() {
    let path = std::env::temp_dir().join(format!("valve-stream-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let target = Target::parse(&format!("unix://{}", path.display())).unwrap();
    let mut stream = Stream::connect(&target, &within_ms(5_000)).unwrap();
    std::fs::remove_file(&path).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    assert!(stream.is_quiet());
    assert_eq!(stream.write(b"ping", &within_ms(5_000)).unwrap(), 4);
    let mut heard = [0; 4];
    peer.read_exact(&mut heard).unwrap();
    assert_eq!(stream.read(&mut heard, &within_ms(20)).unwrap_err().kind(), ErrorKind::TimedOut);
    peer.write_all(b"pong").unwrap();
    assert_eq!(stream.read(&mut heard, &within_ms(5_000)).unwrap(), 4);
    drop(peer);
    assert!(!stream.is_quiet());
    assert_eq!(stream.read(&mut heard, &within_ms(5_000)).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}
