//! Names of requests. A caller may bring one in `x-request-id`; otherwise it is made here.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_types::{Fault, Reject, RequestId};

const MAX_BYTES: usize = 128;

/// A word that no other request of this or another process has: random for the process, counted within it.
pub(crate) fn unique() -> String {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    let mut word = String::with_capacity(24);
    push_hex(&mut word, *PROCESS.get_or_init(random), 16);
    push_hex(&mut word, number(), 8);
    word
}

/// Numbers that a thread takes at once, so that threads do not wait for one count at each request.
const NUMBERS: u64 = 1024;

/// A number that nobody in this process was given before.
fn number() -> u64 {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NEXT: Cell<u64> = const { Cell::new(0) });
    NEXT.with(|next| {
        let number = match next.get() {
            used if used % NUMBERS == 0 => TAKEN.fetch_add(NUMBERS, Ordering::Relaxed),
            number => number,
        };
        next.set(number + 1);
        number
    })
}

/// A word that nobody can guess: 128 random bits.
pub(crate) fn secret() -> Result<String, Reject> {
    let mut bytes = [0; 16];
    let why = "this machine gives no random numbers";
    getrandom::fill(&mut bytes).map_err(|error| Reject::internal(Fault::Operator, format!("{why}: {error}")))?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}

/// At least `digits` digits. Formatting would cost more than the rest of a request's identity.
fn push_hex(out: &mut String, value: u64, digits: u32) {
    let digits = digits.max((67 - value.leading_zeros()) / 4);
    for i in (0..digits).rev() {
        let digit = (value >> (4 * i) & 15) as u32;
        out.push(char::from_digit(digit, 16).unwrap_or('0'));
    }
}

fn random() -> u64 {
    // Without a source of randomness the clock is good enough: this is a name, not a secret.
    getrandom::u64().unwrap_or_else(|_| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_nanos() as u64)
    })
}

/// The caller's id where it is fit for logs and headers, else `req_` and `unique`.
pub(crate) fn request_id(given: Option<&[u8]>, unique: &str) -> RequestId {
    let sane = |id: &&[u8]| {
        (1..=MAX_BYTES).contains(&id.len())
            && id.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    match given.filter(sane).and_then(|id| std::str::from_utf8(id).ok()) {
        Some(id) => RequestId::new(id),
        None => RequestId::new(["req_", unique].concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_differ_and_a_sane_one_of_the_caller_is_kept() {
        let some = || (0..3 * NUMBERS + 1).map(|_| unique()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(some)).collect();
        let all: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).chain(some()).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        let hex = |value, digits| {
            let mut out = String::new();
            push_hex(&mut out, value, digits);
            out
        };
        assert_eq!(
            [hex(0, 2), hex(0xab, 4), hex(0x12345, 2), hex(u64::MAX, 1)],
            ["00", "00ab", "12345", "ffffffffffffffff"]
        );
        assert_eq!(request_id(Some(b"a-1_2.x"), "u").as_str(), "a-1_2.x");
        for bad in [&b""[..], b"a b", b"a\n", b"\xff", &[b'x'; 129]] {
            assert_eq!(request_id(Some(bad), "u").as_str(), "req_u");
        }
        assert_eq!(request_id(None, "u").as_str(), "req_u");
    }
}
