//! Signatures by `ring`, behind the traits of `jsonwebtoken`, which brings none of its own here. Only what has a public key:
//! whoever shares a secret with an issuer could sign for it. This program signs nothing.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use signature::Verifier;

static PROVIDER: CryptoProvider =
    CryptoProvider { signer_factory: signer, verifier_factory: verifier, key_utils: KeyUtils::new_unimplemented() };

/// Makes `jsonwebtoken` use `ring`, once in a process.
pub(crate) fn install() {
    // It was this one already.
    let _ = PROVIDER.install_default();
}

/// Whether `signature` (base64url) is of `message`, by `key`.
pub(crate) fn confirms(key: &DecodingKey, algorithm: Algorithm, message: &[u8], signature: &str) -> bool {
    jsonwebtoken::crypto::verify(signature, message, key, algorithm).unwrap_or(false)
}

fn signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(new_error(ErrorKind::UnsupportedAlgorithm))
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if algorithm.family() != key.family() || key.family() == AlgorithmFamily::Hmac {
        return Err(new_error(ErrorKind::InvalidAlgorithm));
    }
    Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() }))
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), signature::Error> {
        let verified = match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                let parameters = rsa(self.algorithm).ok_or_else(signature::Error::new)?;
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            DecodingKeyKind::SecretOrDer(point) => {
                let parameters = curve(self.algorithm).ok_or_else(signature::Error::new)?;
                UnparsedPublicKey::new(parameters, point).verify(message, signature)
            }
        };
        verified.map_err(|_| signature::Error::new())
    }
}

fn rsa(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        Algorithm::RS256 => &RSA_PKCS1_2048_8192_SHA256,
        Algorithm::RS384 => &RSA_PKCS1_2048_8192_SHA384,
        Algorithm::RS512 => &RSA_PKCS1_2048_8192_SHA512,
        Algorithm::PS256 => &RSA_PSS_2048_8192_SHA256,
        Algorithm::PS384 => &RSA_PSS_2048_8192_SHA384,
        Algorithm::PS512 => &RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

fn curve(algorithm: Algorithm) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match algorithm {
        Algorithm::ES256 => &ECDSA_P256_SHA256_FIXED,
        Algorithm::ES384 => &ECDSA_P384_SHA384_FIXED,
        Algorithm::EdDSA => &ED25519,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use ring::rand::SystemRandom;
    use ring::signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
    };

    const MESSAGE: &[u8] = b"header.claims";
    // Of `MESSAGE` by OpenSSL: `openssl dgst -sha256 -sign key.pem`, for PSS with `-sigopt rsa_padding_mode:pss -sigopt
    // rsa_pss_saltlen:32` (48, 64). The private key is gone.
    const MODULUS: &str = "orOdQ-lQjVzrapuan3zN-iQNlua8b1EcfMHuzDZE2HNCWwD8VUvqFEKEqe9rjYzgHMAmOD8StdAL-nzxR2GO3btjZ6Ox57eXGT3v\
         Y99s8OH96FMPWqcu-6Lt6UPUM6OZtBUfyDqac_-qmBNu3wndP03Wx6yNR66USvUJmFHWqwfDrBrc_U1etqFYV5q4PyGe3tLvXJyb\
         SBbjsYQLrEvVl5A0Acgi5TSYHKlWE9a7nsym-3cm371FRBEib5RKL1VGAVGq8YVefVVXyjAMeYwtx_vwWHYuMflsHZkbI2GXc6b2\
         jKFp45BwwbKBGFLngIVtcSM7sqUq_CrVR72lcaddqQ";
    const RSA: [(Algorithm, &str); 6] = [
        (
            Algorithm::RS256,
            "Vk3r6Tl3_boQUXB-SfHhCwnpSiFW4BX0c_NtTclosdzpakBZ8YsmmkXTw1_7I23tmFnktNEbmhY2vU70FkNxFed6W2XzAPNcHZvw\
         rvJWNlvgyUXpwfwaqHoGKd89hWIKRzEDQgRnwgfs__9auuqkaVfUgHMMqQvvuZ7tYuYdEKlFITfhjBS289-zNFRlvRWNtRj-AdSQ\
         Bgb9KLcL64PLpglrKuymVfZgzytRNR664dS50deqSSRf15mBfMKh6IRO9c4ZQWoUfhHUpt8AbrkvSMH1EWs35-NrjWEZaEFWcJLS\
         O79Wme3vuQGohJxEFtcmdhTTsMcMj0cH1GPeuYTl6w",
        ),
        (
            Algorithm::RS384,
            "HstcsJDlok0uq4QG71jaXHGbBtLa7NeNuvzjbA43UsVqqVuSsZ0CH4KP7NrDsMNLmFzrQ0s3ncTld9wACpJ_KLcZj0-BRjs-MdqB\
         eqDMvLkZ31wGs8lVPnKFyrI3YSMzW12xN_X2Z8FpPWmZrLaFIHjbZn3h6aAbHO_BvzDqCqT4aHxBGmjfTXynSrcGxpnEgLMNezre\
         QsdMQ6wGfYJZlfwui8kH7WgskZwzCvPYz3X0aSJUv6FDt7JLiq_SPFr8LF-E_fIyokpXkP2NGxrImCMHfhTlFSyDrS3kcD10ks6U\
         JILSV_vvJcz6dwEkir4qjS-nRrYY3l1eex42qHvpOA",
        ),
        (
            Algorithm::RS512,
            "XudcF1a40CEidBoBAyJcKEYSrwk2P98eYNNGd-M2OEb4-3Di-DQTAC4ssyKsT-Hj3hRosbtE-nK8KMkPNG1f40t7hySv5755aJpy\
         X3dMxv2M_1m1UgKgGp1Gk0lgoV8kkzcU0VeD9NFWQGrC1tHgvAWoWt1H4lFf5TL0ae32xaKJ80UpvdHlk16nmQZ5dBJfGgwOcIVL\
         WlDyqmS0vxpFNzJ4JWElWKoSRGFYddfItOpz2it06-N0cwqYVzwbfVaRS38S39swN0RO2_08OT1VZZB5qrHTthFx3tDEE_ApIhDV\
         WlzqOVRwYO619fdamkIUKvm6mQI5Af9IPNpRj_3UHg",
        ),
        (
            Algorithm::PS256,
            "K45c4bNhtARMERPDbWS76eKW_y3okoQi-NpFVbT6EzjgMB5yDJAnwtvpt1e5I4SNMIxrgEuZR7_jpmfS-KyqrLaKljXb49mVt2tC\
         kBgEm8eQVDoE_ImNY-gV9ZjolwvVRJ-0CmLvi7s6Q3iC8qyr4kgHubzqI85CleR3gOUlstd53TsjNIJW6Ff2x0a3rxdw3FoAJTLr\
         A5cBqluR97jTquqIxMLQ7-8buxgqtgRThkUlY1uFA3tvmjQwr19XzRxFDw646w9zaEI99hABOkaEIDuN5mXpE6sE-iKUEXYoM0Hj\
         ECZLVCYl8kaOKgTT7eFOC-IcPe91BsZb7hzhuC9tDA",
        ),
        (
            Algorithm::PS384,
            "c09Ap2Y4fMGUfBRhbdrXLl1INFZaBDyfCHIMFbtXrIwyBc4eouNPUVUBIw7VwXVNDzVUs2azn_ysceVVTr1BPoWInbiLhjJXKDq_\
         Wz7YAuqcilrD9scbv1Wr2pv99So3HSjNhmCcUdJtr6nzJ9j05_T-3ft2Xw6dKfVa3eky-WJ03K-_jvwETTB9Dc4bO_59h48TW5k7\
         dFTpT0BfhOFiQRoHImR3ikWcAvMehSv4qt9Fk2s2I8cAK0yLCL_ALye9q4wohvFbwqsnxyt5whB56GIxoU2EqPIqivpw9Q566VZt\
         RNS1JLw38qYaoCNOCSPuI9JGXt7hLDU8jlsCjohYaQ",
        ),
        (
            Algorithm::PS512,
            "ZsxSJmfoe0RWvlFFNRgobFwh1WrPhmBVBVctOCxk34kCMl44Tc433ipMz5YLVGAZ-wMkzhh9hWb3crhWb0s4BwbqOHCG_fLsrcLQ\
         y_HDpct532zFYc6fi6LTw2MljkigI0VU5kvK3nuFVVoZyPxWsx9JYOKtWmQtkpkKKiH1QEzFNtAGE6xBHON8ynZsMR9EaeVYHABK\
         sAu5BE8erSAdT6-Z76ZjHRFBX-PpHo6FWvk_qAQxxlNWKCjc4kQ10KQnmANWCF5ZMWD1KHsVlK4JWeL3qVzC3O_My9eZT9iYVZ4L\
         xSiAVgBkeI18rEG9QmY0elfwbPd0rdkbA7J8pPaQ0Q",
        ),
    ];

    /// What `signature` confirms: its own algorithm and message, and no other.
    fn check(key: &DecodingKey, own: Algorithm, signature: &str, all: &[Algorithm]) {
        install();
        for algorithm in all {
            assert_eq!(confirms(key, *algorithm, MESSAGE, signature), *algorithm == own, "{own:?} as {algorithm:?}");
        }
        assert!(!confirms(key, own, b"header.claim", signature), "{own:?}");
        assert!(!confirms(key, own, MESSAGE, &signature[1..]) && !confirms(key, own, MESSAGE, ""), "{own:?}");
    }

    const ALL: [Algorithm; 10] = [
        Algorithm::RS256,
        Algorithm::RS384,
        Algorithm::RS512,
        Algorithm::PS256,
        Algorithm::PS384,
        Algorithm::PS512,
        Algorithm::ES256,
        Algorithm::ES384,
        Algorithm::EdDSA,
        Algorithm::HS256,
    ];

    #[test]
    fn a_signature_of_rsa_is_good_for_its_own_algorithm_only() {
        let key = DecodingKey::from_rsa_components(MODULUS, "AQAB").unwrap();
        RSA.iter().for_each(|(own, signature)| check(&key, *own, signature, &ALL));
    }

    #[test]
    fn a_signature_on_a_curve_is_good_for_its_own_algorithm_only() {
        let random = SystemRandom::new();
        let kinds = [
            (Algorithm::ES256, &ECDSA_P256_SHA256_FIXED_SIGNING),
            (Algorithm::ES384, &ECDSA_P384_SHA384_FIXED_SIGNING),
        ];
        for (own, kind) in kinds {
            let document = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
            let pair = EcdsaKeyPair::from_pkcs8(kind, document.as_ref(), &random).unwrap();
            let signature = URL_SAFE_NO_PAD.encode(pair.sign(&random, MESSAGE).unwrap());
            check(&DecodingKey::from_ec_der(pair.public_key().as_ref()), own, &signature, &ALL);
        }
        let document = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        let signature = URL_SAFE_NO_PAD.encode(pair.sign(MESSAGE));
        check(&DecodingKey::from_ed_der(pair.public_key().as_ref()), Algorithm::EdDSA, &signature, &ALL);
    }

    #[test]
    fn a_shared_secret_confirms_nothing() {
        install();
        let tag = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"secret"), MESSAGE);
        let key = DecodingKey::from_secret(b"secret");
        assert!(!confirms(&key, Algorithm::HS256, MESSAGE, &URL_SAFE_NO_PAD.encode(tag)));
    }
}
