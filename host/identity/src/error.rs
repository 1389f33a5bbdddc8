//! Why a token is not taken.

use tidegate_types::{Fault, Reject, RejectKind};

/// What is wrong with a token, in words that its sender may read. None repeats a part of the token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Longer than any honest one.
    #[error("the token has {bytes} bytes; the most is {limit}")]
    TooLong {
        /// Of the whole token.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
    /// Not three parts of base64url, or not what they must hold.
    #[error("the token cannot be read: {0}")]
    Malformed(&'static str),
    /// Nobody whom the config trusts.
    #[error(
        "the token is from an issuer that this server does not know; its `iss` must be a configured one, to the letter"
    )]
    UnknownIssuer,
    /// Unsigned, signed with a shared secret, or by an algorithm that the config leaves out.
    #[error("the token is not signed by an algorithm that this server takes from its issuer")]
    Algorithm,
    /// No published key fits.
    #[error("the token names no key that its issuer publishes for its algorithm")]
    UnknownKey,
    /// The key does not confirm it.
    #[error("the token's signature is wrong")]
    Signature,
    /// Over.
    #[error("the token has expired; get a new one")]
    Expired,
    /// Not begun.
    #[error("the token is not valid yet; its issuer's clock or this server's may be wrong")]
    NotYet,
    /// Not for this server.
    #[error("the token is for another audience than this server")]
    Audience,
    /// A claim that is needed is absent, or cannot be used.
    #[error("the token's claim `{claim}` {why}")]
    Claim {
        /// As the config or the standard names it.
        claim: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The keys could not be had, and there are none from before that are young enough.
    #[error("the keys of the token's issuer cannot be had at the moment; try again")]
    Away,
}

impl TokenError {
    pub(crate) fn claim(claim: &str, why: &'static str) -> Self {
        Self::Claim { claim: claim.to_owned(), why }
    }

    /// For metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::TooLong { .. } => "too_long",
            Self::Malformed(_) => "malformed",
            Self::UnknownIssuer => "unknown_issuer",
            Self::Algorithm => "algorithm",
            Self::UnknownKey => "unknown_key",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::NotYet => "not_yet",
            Self::Audience => "audience",
            Self::Claim { .. } => "claim",
            Self::Away => "away",
        }
    }
}

/// Seconds after which an issuer that is away may be back.
const AWAY_RETRY_S: u32 = 5;

impl From<TokenError> for Reject {
    fn from(error: TokenError) -> Self {
        let code = match error {
            TokenError::Away => {
                return Reject::unavailable(Fault::Operator, error.to_string(), AWAY_RETRY_S).code("issuer_away");
            }
            TokenError::Expired => "expired_token",
            _ => "invalid_token",
        };
        Reject::new(RejectKind::Unauthenticated, Fault::Client, error.to_string()).code(code)
    }
}
