//! The bodies of requests that can be sent again: [`Payload`].

/// The body of a request that can be sent again: `()` for none, or bytes in memory. What is read from a file or a socket
/// would be gone after the first attempt. Implemented for `()`, `&[u8]`, `Vec<u8>`, `&str`, `String` and references to
/// them.
pub trait Payload: sealed::Bytes {}

impl<B: sealed::Bytes + ?Sized> Payload for B {}

pub(super) mod sealed {
    //! Keeps the trait ours, so that it may change.

    pub trait Bytes {
        /// `None` for no body at all, which is not the same as an empty one.
        fn bytes(&self) -> Option<&[u8]>;
    }

    impl Bytes for () {
        fn bytes(&self) -> Option<&[u8]> {
            None
        }
    }

    impl Bytes for [u8] {
        fn bytes(&self) -> Option<&[u8]> {
            Some(self)
        }
    }

    impl Bytes for str {
        fn bytes(&self) -> Option<&[u8]> {
            Some(self.as_bytes())
        }
    }

    impl Bytes for Vec<u8> {
        fn bytes(&self) -> Option<&[u8]> {
            Some(self)
        }
    }

    impl Bytes for String {
        fn bytes(&self) -> Option<&[u8]> {
            Some(self.as_bytes())
        }
    }

    impl<B: Bytes + ?Sized> Bytes for &B {
        fn bytes(&self) -> Option<&[u8]> {
            (**self).bytes()
        }
    }
}
