//! `tidegate key NAME`: a new API key. The key is shown once; the config holds its hash only.

use anyhow::Context;
use std::fmt::Write;

/// A new key of 32 random bytes, and its config entry.
pub fn make(name: &str) -> anyhow::Result<(String, String)> {
    let (key, hash) = secret()?;
    let entry = format!("[[keys]]\nname = {}\nhash = \"{hash}\"\n", toml::Value::from(name));
    Ok((key, entry))
}

/// A new key, and what is kept of it.
pub(crate) fn secret() -> anyhow::Result<(String, String)> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).context("this machine gives no random numbers")?;
    let mut key = String::from("tg-");
    for byte in bytes {
        write!(key, "{byte:02x}")?;
    }
    let hash = format!("blake3:{}", blake3::hash(key.as_bytes()).to_hex());
    Ok((key, hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn the_entry_is_a_config_that_knows_the_key() {
        let (key, entry) = make("a \"quoted\" name").unwrap();
        let config = Config::parse(&entry).unwrap();
        assert_eq!(config.keys[0].name, "a \"quoted\" name");
        assert_eq!(config.keys[0].hash, format!("blake3:{}", blake3::hash(key.as_bytes())));
    }
}
