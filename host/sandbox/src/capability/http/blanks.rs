//! What a guest sees in the place of secrets that come back, and what it does not see at all.

use super::HttpResponse;
use crate::capability::CapabilityError;
use memchr::memmem::Finder;

/// In a secret's place.
pub(super) const BLANK: &str = "[secret]";

/// Refuses an answer in which a secret would not be seen. It does not say how that is encoded: there could be one in it.
pub(super) fn check_plain(response: &HttpResponse) -> Result<(), CapabilityError> {
    let is_encoded = |(name, value): &(String, String)| {
        name.eq_ignore_ascii_case("content-encoding") && !value.trim().eq_ignore_ascii_case("identity")
    };
    match response.headers.iter().any(is_encoded) {
        true => {
            let message = "the answer has a `content-encoding`, in which a secret of the request would not be seen";
            Err(CapabilityError::Unsupported(message.into()))
        }
        false => Ok(()),
    }
}

/// The first `most` bytes of a body or a header's value, with [`BLANK`] for each secret that begins in them, and one for
/// those that share bytes.
pub(super) fn blanked(body: &[u8], secrets: &[&str], most: usize) -> Vec<u8> {
    let found = |secret: &&str| {
        let (finder, len, mut from) = (Finder::new(secret.as_bytes()), secret.len(), 0);
        let next = move || {
            let start = from + finder.find(body.get(from..)?)?;
            // One may begin in another of itself.
            from = start + 1;
            Some((start, start + len))
        };
        std::iter::from_fn(next).collect::<Vec<_>>()
    };
    let mut places: Vec<(usize, usize)> = secrets.iter().flat_map(found).filter(|(start, _)| *start < most).collect();
    places.sort_unstable();
    let (mut left, mut from) = (Vec::with_capacity(body.len().min(most)), 0);
    for (start, end) in places {
        // One that begins in another: what is left of it goes too.
        if start >= from {
            left.extend_from_slice(&body[from..start]);
            left.extend_from_slice(BLANK.as_bytes());
        }
        from = from.max(end);
    }
    left.extend_from_slice(body.get(from..body.len().min(most)).unwrap_or_default());
    left
}
