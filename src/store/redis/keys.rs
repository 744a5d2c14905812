//! What is called what on the server: the two keys of an id, and the channel of its notices.

/// The keys of one id. What is in the braces decides the node of a cluster, so both are on the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Keys {
    /// A hash: everything but the leases.
    pub(super) state: Vec<u8>,
    /// A sorted set, only where slots are global: the leases by their ends.
    pub(super) leases: Vec<u8>,
}

impl Keys {
    /// Different ids never share a key. The prefix must be free of braces, or a cluster would go by those.
    pub(super) fn new(prefix: &str, id: &str) -> Keys {
        let mut state = Vec::with_capacity(prefix.len() + id.len() + 4);
        state.extend_from_slice(prefix.as_bytes());
        state.push(b'{');
        for byte in id.bytes() {
            match byte {
                b'{' => state.extend_from_slice(b"%7B"),
                b'}' => state.extend_from_slice(b"%7D"),
                b'%' => state.extend_from_slice(b"%25"),
                other => state.push(other),
            }
        }
        if id.is_empty() {
            // With nothing between the braces a cluster goes by the whole key; no other id looks like this.
            state.push(b'%');
        }
        state.push(b'}');
        let leases = [&state[..], b":l"].concat();
        Keys { state, leases }
    }
}

/// The channel on which all ids of this prefix are told of pauses, resumes and releases.
pub(super) fn channel(prefix: &str) -> Vec<u8> {
    [prefix.as_bytes(), b"notices"].concat()
}

#[cfg(test)]
mod tests;
