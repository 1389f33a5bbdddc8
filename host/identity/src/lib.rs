//! Who a caller is by what others sign: bearer tokens (JWT, RFC 7519), of whom, with which keys, and what is taken from
//! their claims; and the names of client certificates (`certificate.rs`).
//!
//! Read `verify.rs` for a token's path. `issuer.rs` keeps the keys of one issuer (`keys.rs`) and fetches them anew, one
//! fetch at a time (`turn.rs`), `claims.rs` reads what a verified token says, `cache.rs` remembers the tokens that were
//! verified, `json.rs` reads JSON without a doubt about what it says. `login.rs` is the flow by which people get a token,
//! and `exchanges.rs` bounds it.
//!
//! Invariants: a token is taken only with the signature of a key that its configured issuer publishes at the place that
//! the config names, by an algorithm that the config allows; nothing in the token chooses where keys come from. What a
//! verified token was found to say is found again by the SHA-256 of the whole token only, and its times are checked each
//! time. No error repeats a part of a token.

mod cache;
mod certificate;
mod claims;
mod crypto;
mod document;
mod error;
mod exchanges;
mod issuer;
mod json;
mod keys;
mod login;
mod turn;
mod verify;

pub use certificate::{Certificate, CertificateName};
pub use claims::{ClaimNames, Claimed, Tenants, named_role};
pub use error::TokenError;
pub use issuer::Trust;
pub use jsonwebtoken::Algorithm;
pub use keys::algorithm;
pub use login::{Begun, Login, LoginError, LoginTerms};
pub use verify::{Issuers, MAX_TOKEN_BYTES, looks_like_one};
