//! The proxy does what it says, or the tests through it would show nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::{Cut, Flow, Proxy, Slices, Way};
use crate::redis::{Stopwatch, nap};
use crate::support::ms;

/// A proxy to a peer of the test's own, and one connection through it, seen from both ends.
struct Pair {
    proxy: Proxy,
    listener: TcpListener,
    client: TcpStream,
    server: TcpStream,
}

fn pair() -> Pair {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap());
    let (client, server) = connection(proxy.address(), &listener);
    Pair { proxy, listener, client, server }
}

fn connection(address: SocketAddr, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect_timeout(&address, ms(5_000)).unwrap();
    let (server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(ms(5_000))).unwrap();
    }
    (client, server)
}

/// What arrives within so long, and how it ended.
fn arrives(mut stream: &TcpStream, within: Duration) -> (Vec<u8>, Option<ErrorKind>) {
    stream.set_read_timeout(Some(within)).unwrap();
    let mut got = Vec::new();
    let mut buffer = [0; 4_096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return (got, None),
            Ok(count) => got.extend(&buffer[..count]),
            Err(error) => return (got, Some(error.kind())),
        }
    }
}

#[test]
fn it_cuts_at_exactly_the_byte() {
    let text: Vec<u8> = (0..40).collect();
    let ends = [
        (Cut::Close, None),
        (Cut::Reset, Some(ErrorKind::ConnectionReset)),
        (Cut::Stall, Some(ErrorKind::WouldBlock)),
    ];
    for (cut, end) in ends {
        for (bytes, slices) in [(0, 40), (1, 40), (17, 40), (17, 3), (39, 40)] {
            let Pair { proxy, listener, client, mut server } = pair();
            proxy.slice(Way::Down, Slices { bytes: slices, apart: Duration::ZERO });
            proxy.cut_after(Way::Down, bytes, cut);
            server.write_all(&text).unwrap();
            let (got, got_end) = arrives(&client, ms(100));
            // Bytes that a reset overtakes are lost with it, so there may be fewer then.
            let expected = if cut == Cut::Reset { &text[..got.len()] } else { &text[..bytes] };
            assert_eq!((&got[..], got_end), (expected, end), "{cut:?} after {bytes}");
            assert!(got.len() <= bytes, "{cut:?} after {bytes}");
            if cut == Cut::Stall {
                proxy.heal();
                assert_eq!(arrives(&client, ms(100)).0, text[bytes..], "what stalled comes once it heals");
            }
            // The next connection is whole.
            let (mut client, server) = connection(proxy.address(), &listener);
            client.write_all(&text).unwrap();
            assert_eq!(arrives(&server, ms(100)).0, text);
        }
    }
}

#[test]
fn held_bytes_go_on_after_their_sender_is_gone() {
    let Pair { proxy, mut client, server, .. } = pair();
    proxy.flow(Way::Up, Flow::Held);
    client.write_all(b"late").unwrap();
    drop(client);
    assert_eq!(arrives(&server, ms(50)), (Vec::new(), Some(ErrorKind::WouldBlock)));
    proxy.heal();
    assert_eq!(arrives(&server, ms(1_000)), (b"late".to_vec(), None));
}

#[test]
fn lost_bytes_never_come() {
    let Pair { proxy, mut client, server, .. } = pair();
    proxy.flow(Way::Up, Flow::Lost);
    client.write_all(b"lost").unwrap();
    nap(50);
    proxy.heal();
    client.write_all(b"found").unwrap();
    assert_eq!(arrives(&server, ms(100)).0, b"found");
}

#[test]
fn delays_and_slices_take_their_time() {
    let Pair { proxy, mut client, mut server, .. } = pair();
    proxy.delay(Way::Up, ms(80));
    let watch = Stopwatch::start();
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    assert!(watch.elapsed() >= ms(80));
    proxy.heal();
    proxy.slice(Way::Down, Slices { bytes: 2, apart: ms(20) });
    let watch = Stopwatch::start();
    server.write_all(b"12345678").unwrap();
    client.read_exact(&mut [0; 8]).unwrap();
    assert!(watch.elapsed() >= ms(60), "{:?}", watch.elapsed());
}

#[test]
fn a_sender_that_is_not_read_cannot_go_on() {
    let Pair { proxy, mut client, .. } = pair();
    proxy.flow(Way::Up, Flow::Unread);
    client.set_write_timeout(Some(ms(100))).unwrap();
    let chunk = vec![0; 1 << 20];
    let blocked = (0..100).find_map(|_| client.write_all(&chunk).err());
    assert_eq!(blocked.map(|error| error.kind()), Some(ErrorKind::WouldBlock));
}

#[test]
fn a_vanished_proxy_answers_nobody_until_it_heals() {
    let Pair { proxy, listener, .. } = pair();
    proxy.vanish();
    for _ in 0..2 {
        let refused =
            TcpStream::connect_timeout(&proxy.address(), ms(100)).map(drop).map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::TimedOut));
    }
    proxy.heal();
    // Those that had filled its queue come first.
    while listener.set_nonblocking(true).is_ok() && TcpStream::connect(proxy.address()).is_err() {}
    nap(50);
    while listener.accept().is_ok() {}
    listener.set_nonblocking(false).unwrap();
    let (mut client, server) = connection(proxy.address(), &listener);
    client.write_all(b"again").unwrap();
    assert_eq!(arrives(&server, ms(200)).0, b"again");
}
