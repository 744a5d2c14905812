//! A Redis server of one's own on loopback, and a plain client that shares no code with the one that is shown.

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use r2d2_redis::redis::{Client, Connection};

use crate::Failure;

/// How long a server on loopback may take to start, to connect, or to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Somebody else may take the port between our look and the server's.
const TRIES: usize = 3;

const NOT_INSTALLED: &str = "there is no redis-server here; install it (Debian, Ubuntu: apt-get install redis-server; \
     Fedora: dnf install redis; macOS: brew install redis)";

/// Ends with its owner, and leaves nothing behind.
pub(crate) struct Server {
    process: Child,
    directory: PathBuf,
    url: String,
}

impl Server {
    /// Starts a server that keeps nothing on disk.
    pub(crate) fn start() -> Result<Server, Failure> {
        let mut failure = Failure::from("no try was made");
        for attempt in 0..TRIES {
            match Server::attempt(attempt) {
                Ok(server) => return Ok(server),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    fn attempt(number: usize) -> Result<Server, Failure> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let directory = std::env::temp_dir().join(format!("valve-redis-{}-{number}", process::id()));
        fs::create_dir_all(&directory)?;
        let process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
            .args(["--logfile", "log"])
            .arg("--dir")
            .arg(&directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let process = process.map_err(|error| {
            // Nothing was started that would remove it.
            let _ = fs::remove_dir_all(&directory);
            match error.kind() {
                ErrorKind::NotFound => Failure::from(NOT_INSTALLED),
                _ => format!("redis-server: {error}").into(),
            }
        })?;
        let mut server = Server { process, directory, url: format!("redis://127.0.0.1:{port}/") };
        server.wait_until_it_answers()?;
        Ok(server)
    }

    fn wait_until_it_answers(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait()? {
                let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                let last = log.lines().last().unwrap_or("it logged nothing");
                return Err(format!("redis-server ended at once, {status}: {last}").into());
            }
            match connect(&self.url) {
                Ok(_) => return Ok(()),
                Err(error) if begun.elapsed() > PATIENCE => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A connection that has answered once, and on which nothing waits for ever.
pub(crate) fn connect(url: &str) -> Result<Connection, Failure> {
    let mut connection = Client::open(url)?.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let _: String = r2d2_redis::redis::cmd("PING").query(&mut connection)?;
    Ok(connection)
}
