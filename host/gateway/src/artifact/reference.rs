//! Where an artifact is: `oci://host[:port]/repository:tag`, or a folder, `file:DIR` or a path. A digest,
//! `@sha256:...`, is exact; with one, a tag is only a name.

use super::digest::Digest;
use anyhow::{Context, bail};
use std::fmt;
use std::path::{Path, PathBuf};

/// What a reference to a registry begins with, always where it is written again.
pub(super) const OCI: &str = "oci://";
const FILE: &str = "file:";

/// A reference, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Where.
    pub place: PlaceName,
    /// Which of those that are there.
    pub tag: Option<String>,
    /// Exactly which.
    pub digest: Option<Digest>,
}

/// A registry's repository or a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceName {
    /// A repository of a registry.
    Registry {
        /// `host` or `host:port`.
        host: String,
        /// Such as `plugins/hush`.
        repository: String,
    },
    /// A folder in the OCI layout.
    Folder(PathBuf),
}

impl Reference {
    /// Takes a reference apart.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        // Folders may have one in their names.
        let at = if folder(text).is_some() { text.rfind("@sha256:") } else { text.find('@') };
        let (rest, digest) = match at {
            Some(at) => (&text[..at], Some(Digest::parse(&text[at + 1..])?)),
            None => (text, None),
        };
        if let Some(folder) = folder(rest) {
            let (folder, tag) = split_tag(folder);
            if folder.is_empty() {
                bail!("`{}` names no folder", text.escape_debug());
            }
            return Ok(Self { place: PlaceName::Folder(folder.into()), tag, digest });
        }
        let (host, path) = rest.strip_prefix(OCI).unwrap_or(rest).split_once('/').with_context(|| unclear(text))?;
        if !rest.starts_with(OCI) && !host.contains(['.', ':']) && host != "localhost" {
            bail!("{}", unclear(text));
        }
        let (repository, tag) = split_tag(path);
        check_host(host)?;
        check_repository(repository)?;
        let place = PlaceName::Registry { host: host.to_owned(), repository: repository.to_owned() };
        Ok(Self { place, tag, digest })
    }

    /// As [`Self::parse`], for arguments: a folder that is there needs no mark.
    pub fn argument(text: &str) -> anyhow::Result<Self> {
        if Path::new(text).is_dir() {
            return Ok(Self { place: PlaceName::Folder(text.into()), tag: None, digest: None });
        }
        Self::parse(text)
    }

    /// The tag or digest to ask for.
    pub fn wanted(&self) -> anyhow::Result<String> {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => Ok(digest.to_string()),
            (None, Some(tag)) => Ok(tag.clone()),
            (None, None) => bail!("{self} names neither a tag nor a digest; add `:TAG` or `@sha256:...`"),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            PlaceName::Registry { host, repository } => write!(f, "{OCI}{host}/{repository}")?,
            PlaceName::Folder(folder) => write!(f, "{FILE}{}", folder.display())?,
        }
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

fn unclear(text: &str) -> String {
    format!(
        "`{}` is neither `oci://HOST/REPOSITORY:TAG` nor a folder, which is written `file:DIR`, `./DIR` or `/DIR`",
        text.escape_debug()
    )
}

/// The path, where it is one.
fn folder(text: &str) -> Option<&str> {
    text.strip_prefix(FILE).or_else(|| text.starts_with(['.', '/']).then_some(text))
}

/// Without the tag behind the last colon of the last part.
fn split_tag(path: &str) -> (&str, Option<String>) {
    match path.rsplit_once(':') {
        Some((rest, tag)) if is_tag(tag) => (rest, Some(tag.to_owned())),
        _ => (path, None),
    }
}

/// `[A-Za-z0-9_][A-Za-z0-9._-]*` of at most 128 bytes, as the distribution specification says.
pub(super) fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&tag.len())
        && tag.bytes().all(|byte| word(byte) || byte == b'.' || byte == b'-')
        && tag.bytes().next().is_some_and(word)
}

/// A name or address with perhaps a port; the connection's own parser looks at it again.
fn check_host(host: &str) -> anyhow::Result<()> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    if host.is_empty() || !host.bytes().all(good) {
        bail!("`{}` is no registry's host", host.escape_debug());
    }
    Ok(())
}

/// Lower-case words between slashes, so that nothing in it can lead elsewhere.
fn check_repository(repository: &str) -> anyhow::Result<()> {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let good = |part: &str| {
        part.bytes().all(|byte| word(byte) || b"._-".contains(&byte))
            && part.bytes().next().is_some_and(word)
            && part.bytes().last().is_some_and(word)
    };
    if repository.len() > 255 || !repository.split('/').all(good) {
        bail!("`{}` is no repository: words of a-z, 0-9, `.`, `_`, `-` between slashes", repository.escape_debug());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_taken_apart_and_written_again() {
        let digest = Digest::of(b"");
        let check = |text: &str, host: &str, repository: &str, tag: Option<&str>, exact: bool| {
            let found = Reference::parse(text).unwrap();
            let place = PlaceName::Registry { host: host.into(), repository: repository.into() };
            assert_eq!((&found.place, found.tag.as_deref(), found.digest.is_some()), (&place, tag, exact), "{text}");
            assert_eq!(Reference::parse(&found.to_string()).unwrap(), found);
        };
        check("oci://ghcr.io/a/hush:0.1.0", "ghcr.io", "a/hush", Some("0.1.0"), false);
        check("ghcr.io/a/hush:0.1.0", "ghcr.io", "a/hush", Some("0.1.0"), false);
        check("oci://localhost:5000/hush", "localhost:5000", "hush", None, false);
        check(&format!("127.0.0.1:5000/hush@{digest}"), "127.0.0.1:5000", "hush", None, true);
        check(&format!("oci://[::1]:5000/hush:x@{digest}"), "[::1]:5000", "hush", Some("x"), true);
    }

    #[test]
    fn folders_are_told_from_registries() {
        let check = |text: &str, folder: &str, tag: Option<&str>| {
            let found = Reference::parse(text).unwrap();
            assert_eq!((found.place, found.tag.as_deref()), (PlaceName::Folder(folder.into()), tag), "{text}");
        };
        check("file:mirror", "mirror", None);
        check("file:/srv/mirror:0.1.0", "/srv/mirror", Some("0.1.0"));
        check("./a:b/c", "./a:b/c", None);
        check("../mirror", "../mirror", None);
        check("file:/home/ann@corp/mirror:1", "/home/ann@corp/mirror", Some("1"));
        let digest = format!("sha256:{}", "ab".repeat(32));
        let found = Reference::parse(&format!("./ann@corp:1@{digest}")).unwrap();
        assert_eq!((found.place, found.digest.unwrap().to_string()), (PlaceName::Folder("./ann@corp".into()), digest));
    }

    #[test]
    fn what_is_unclear_or_could_lead_elsewhere_is_refused() {
        for wrong in [
            "",
            "hush",
            "plugins/hush",
            "file:",
            "oci://ghcr.io",
            "oci://ghcr.io/",
            "oci://ghcr.io/../hush:1",
            "oci://ghcr.io/a//b:1",
            "oci://ghcr.io/Hush:1",
            "oci://ghcr.io/hush?x=1",
            "oci://user@ghcr.io/hush",
            "oci://ghcr.io/hush@sha256:12",
            "oci://gh cr.io/hush",
        ] {
            assert!(Reference::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Reference::parse("oci://ghcr.io/hush").unwrap().wanted().is_err());
    }
}
