//! Finds where a reply ends, so that the decoder is handed exactly one, whole, and nothing beyond what it can bear.
//!
//! The decoder recurses into nested replies and believes every length; here both have limits.

/// The largest reply that is read: far above any that we ask for.
const REPLY_MAX: usize = 1 << 20;

/// The longest line: a status, a number, an error or a length.
const LINE_MAX: usize = 64 << 10;

/// How deep arrays may lie in arrays. What we ask for has one level.
const DEPTH_MAX: usize = 8;

/// How far the bytes of one reply have been looked through.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Where the next part begins.
    at: usize,
    /// How many parts each array that is open still lacks, the outermost first.
    lacking: Vec<usize>,
}

impl Scan {
    /// Where the reply that `bytes` begin with ends, once they hold all of it. To be called again with more bytes behind
    /// the same ones until then; the next reply takes a new scan.
    pub(super) fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        if bytes.len() > 2 * REPLY_MAX {
            return Err("it is larger than any that was asked for");
        }
        loop {
            let rest = &bytes[self.at..];
            let Some(line) = line(rest)? else { return Ok(None) };
            let mut after = line.len() + 2;
            match line.first() {
                Some(b'+' | b'-' | b':') => {}
                Some(b'$') => {
                    if let Some(length) = length(&line[1..])? {
                        after += length + 2;
                        if rest.len() < after {
                            return Ok(None);
                        }
                        if rest[after - 2..after] != *b"\r\n" {
                            return Err("a text does not end where its length says");
                        }
                    }
                }
                Some(b'*') => match length(&line[1..])? {
                    None | Some(0) => {}
                    Some(_) if self.lacking.len() == DEPTH_MAX => return Err("arrays are nested too deep"),
                    Some(parts) => {
                        self.at += after;
                        self.lacking.push(parts);
                        continue;
                    }
                },
                _ => return Err("it does not begin like a reply of Redis"),
            }
            self.at += after;
            if self.closes() {
                return Ok(Some(self.at));
            }
        }
    }

    /// Counts a part that is complete: whether the whole reply is, with it.
    fn closes(&mut self) -> bool {
        while let Some(lacking) = self.lacking.last_mut() {
            *lacking -= 1;
            if *lacking > 0 {
                return false;
            }
            self.lacking.pop();
        }
        true
    }
}

/// The first line, without its end, if it is complete.
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, &'static str> {
    let window = &bytes[..bytes.len().min(LINE_MAX)];
    match window.windows(2).position(|pair| pair == b"\r\n") {
        Some(end) => Ok(Some(&window[..end])),
        None if window.len() == LINE_MAX => Err("a line has no end"),
        None => Ok(None),
    }
}

/// How many bytes or parts follow; `None` if a nil stands for them.
fn length(digits: &[u8]) -> Result<Option<usize>, &'static str> {
    if digits == b"-1" {
        return Ok(None);
    }
    let number =
        std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match number.and_then(|text| text.parse().ok()) {
        Some(length) if length <= REPLY_MAX => Ok(Some(length)),
        Some(_) => Err("it is larger than any that was asked for"),
        None => Err("a length is not a number"),
    }
}

#[cfg(test)]
mod tests;
