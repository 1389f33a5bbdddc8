//! People who are logged in: the cookie that their browsers hold, and what it stands for.
//!
//! The cookie is 256 random bits; what is kept is its hash. Its name begins with `__Host-`, so that browsers take it over
//! TLS from this very host only, and hand it to no other. A page of another site can make a browser send it all the same:
//! what changes something must come from a page of this server, which its `Origin` says.

use crate::credential::unauthenticated;
use crate::grant::{Grant, GrantTokens, ProjectChoice, choose_project};
use crate::kept::store_failed;
use hyper::Method;
use hyper::header::{COOKIE, HeaderMap, ORIGIN};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tidegate_identity::{Claimed, Login};
use tidegate_store::{KeptSession, Sessions};
use tidegate_types::clock::{millis, unix_ms};
use tidegate_types::{Fault, Reject, RejectKind, TenantId};

/// The cookie of a person who is logged in.
pub(crate) const SESSION_COOKIE: &str = "__Host-tidegate-session";
/// The cookie of a login that has begun.
pub(crate) const LOGIN_COOKIE: &str = "__Host-tidegate-login";

/// How often the use of a session is written down.
const TOUCH: Duration = Duration::from_secs(60);

/// How people log in, and for how long.
pub struct People {
    /// At whom.
    pub login: Login,
    /// Where it is kept.
    pub sessions: Sessions,
    /// What the issuer's claims let a person do.
    pub grants: Arc<dyn GrantTokens>,
    /// `https://host[:port]`: where browsers reach this server.
    pub origin: String,
    /// A session that is not used for this long is over.
    pub idle: Duration,
    /// Used or not, it is over after this.
    pub longest: Duration,
}

/// Who is logged in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Person {
    /// What the issuer says.
    #[serde(flatten)]
    pub(crate) claimed: Claimed,
    /// The project that was chosen for the whole login.
    #[serde(default)]
    pub(crate) project: Option<String>,
}

/// A session that goes on.
pub(crate) struct Open {
    pub(crate) person: Person,
    pub(crate) session: KeptSession,
}

/// What a cookie of a request stands for.
pub(crate) struct Session {
    /// Whose login it is, where there is one.
    pub(crate) tenant: Option<TenantId>,
    /// What it is for, or why it lets nobody in.
    pub(crate) grant: Result<Grant, Box<Reject>>,
}

impl People {
    /// Logs a person in; gives what the browser is to hold. What it held before is over.
    pub(crate) async fn enter(&self, person: &Person, before: Option<&str>) -> Result<String, Reject> {
        // Nobody is logged in who could do nothing.
        self.grants.grant(&person.claimed, person.project.as_deref())?;
        let token = random()?;
        let claims = serde_json::to_string(person).map_err(|error| failed(&error))?;
        let now = unix_ms();
        let session = KeptSession {
            hash: hash(&token),
            tenant: person.claimed.tenant.to_string(),
            claims,
            created_ms: now,
            seen_ms: now,
            ends_ms: now.saturating_add(millis(self.longest)),
        };
        let idle = now.saturating_sub(millis(self.idle));
        let opened = self.sessions.open(&session, before.map(hash).as_deref(), idle).await;
        opened.map_err(store_failed)?;
        Ok(token)
    }

    /// Who holds that cookie; `None` where the session is over, or never was.
    pub(crate) async fn find(&self, token: &str) -> Result<Option<Open>, Reject> {
        let hash = hash(token);
        let found = self.sessions.find(&hash).await.map_err(store_failed)?;
        let now = unix_ms();
        let idle_end = |session: &KeptSession| session.seen_ms.saturating_add(millis(self.idle));
        // Whatever held when it began: who shortens what a login lasts means those that there are.
        let found = found.map(|session| {
            let ends_ms = session.ends_ms.min(session.created_ms.saturating_add(millis(self.longest)));
            KeptSession { ends_ms, ..session }
        });
        let Some(session) = found.filter(|session| now < session.ends_ms.min(idle_end(session))) else {
            return Ok(None);
        };
        if now.saturating_sub(session.seen_ms) >= millis(TOUCH.min(self.idle / 4)) {
            self.sessions.touch(&hash, now).await.map_err(store_failed)?;
        }
        let person = serde_json::from_str(&session.claims).map_err(|error| failed(&error))?;
        Ok(Some(Open { person, session }))
    }

    /// What a person may do, in the project that the request names or else the login.
    pub(crate) fn grant(&self, person: &Person, project: Option<&str>) -> Result<Grant, Reject> {
        self.standing(person, project)?.ok_or_else(|| choose_project(&*self.grants, &person.claimed))
    }

    /// The same; `None` where a project has to be chosen first.
    pub(crate) fn standing(&self, person: &Person, project: Option<&str>) -> Result<Option<Grant>, Reject> {
        self.grants.grant(&person.claimed, project.or(person.project.as_deref()))
    }

    /// The projects that a person may choose from.
    pub(crate) fn projects(&self, person: &Person) -> Vec<ProjectChoice> {
        self.grants.projects(&person.claimed)
    }

    /// Logs out.
    pub(crate) async fn leave(&self, token: &str) -> Result<(), Reject> {
        self.sessions.end(&hash(token)).await.map(|_| ()).map_err(store_failed)
    }

    /// Refuses what changes something and does not come from a page of this server.
    pub(crate) fn check_origin(&self, method: &Method, headers: &HeaderMap) -> Result<(), Reject> {
        if method.is_safe() {
            return Ok(());
        }
        let mut origins = headers.get_all(ORIGIN).iter();
        let ours = match (origins.next(), origins.next()) {
            (Some(origin), None) => origin.as_bytes() == self.origin.as_bytes(),
            // Browsers that name no origin say so in another way.
            (None, None) => headers.get("sec-fetch-site").is_some_and(|site| site.as_bytes() == b"same-origin"),
            _ => false,
        };
        if ours {
            return Ok(());
        }
        let message = "a request with a login's cookie that changes something must come from a page of this server; \
                       programs send a key";
        Err(Reject::new(RejectKind::Forbidden, Fault::Client, message).code("cross_site"))
    }
}

/// What is said to a cookie whose session is over.
pub(crate) fn over() -> Reject {
    unauthenticated("the login is over; log in again at /auth/login").code("session_over")
}

/// The value of a cookie; of two that differ, none.
pub(crate) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Reject> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut found = None;
    for (_, value) in pairs.filter(|(known, _)| *known == name) {
        if found.is_some_and(|other| other != value) {
            let message = format!("the request has several different cookies `{name}`");
            return Err(Reject::new(RejectKind::Invalid, Fault::Client, message).code("conflicting_credentials"));
        }
        found = Some(value);
    }
    Ok(found)
}

/// A cookie for this host alone, which no script reads.
pub(crate) fn set_cookie(name: &str, value: &str, lasts: Duration) -> String {
    format!("{name}={value}; Path=/; Max-Age={}; HttpOnly; Secure; SameSite=Lax", lasts.as_secs())
}

fn hash(token: &str) -> String {
    blake3::hash(token.as_bytes()).to_hex().to_string()
}

fn random() -> Result<String, Reject> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| failed(&error))?;
    Ok(blake3::Hash::from_bytes(bytes).to_hex().to_string())
}

fn failed(error: &dyn std::fmt::Display) -> Reject {
    Reject::internal(Fault::Operator, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tidegate_identity::{Issuers, LoginTerms, Tenants, Trust};
    use tidegate_store::{Db, Place};
    use tidegate_types::Caller;

    #[test]
    fn a_cookie_is_found_by_its_whole_name_and_once() {
        let headers = |lines: &[&'static str]| -> HeaderMap {
            lines.iter().map(|line| (COOKIE, hyper::header::HeaderValue::from_static(line))).collect()
        };
        let found = |lines: &[&'static str]| cookie(&headers(lines), "a").map(|value| value.map(str::to_owned)).ok();
        assert_eq!(found(&["b=1; a=2"]), Some(Some("2".into())));
        assert_eq!(found(&["b=1", "a=2;a=2"]), Some(Some("2".into())));
        assert_eq!(found(&["aa=1; A=2; ba=3"]), Some(None));
        assert_eq!(found(&["a=1; a=2"]), None);
        assert_eq!(found(&["a=1", "a=2"]), None);
    }

    struct Anybody;

    impl GrantTokens for Anybody {
        fn grant(&self, _: &Claimed, _: Option<&str>) -> Result<Option<Grant>, Reject> {
            Ok(Some(Grant { caller: Arc::new(Caller::nobody()), endpoints: None }))
        }

        fn projects(&self, _: &Claimed) -> Vec<ProjectChoice> {
            Vec::new()
        }
    }

    async fn people(folder: &std::path::Path, idle: Duration, longest: Duration) -> People {
        let tenant = Tenants::One(TenantId::new("t"));
        let issuers = Arc::<Issuers>::default().replaced(vec![Trust::new("i", "https://i.example", tenant)]);
        let terms = LoginTerms {
            issuer: "i".into(),
            client_id: "c".into(),
            client_secret: None,
            redirect_uri: String::new(),
            scopes: Vec::new(),
        };
        let db = Db::open(&Place::Folder(folder.to_owned())).await.unwrap();
        People {
            login: issuers.login(terms).unwrap(),
            sessions: Sessions::new(db),
            grants: Arc::new(Anybody),
            origin: "https://h".into(),
            idle,
            longest,
        }
    }

    #[tokio::test]
    async fn a_session_ends_when_it_is_idle_and_when_it_is_old() {
        let folder = tempfile::tempdir().unwrap();
        let claimed =
            json!({"issuer": "i", "tenant": "t", "user": "u", "role": "member", "class": null, "models": null});
        // As an older program wrote it.
        let claimed: Person = serde_json::from_value(claimed).unwrap();
        assert_eq!((&claimed.project, &claimed.claimed.projects), (&None, &None));
        let (short, long) = (Duration::from_millis(600), Duration::from_secs(60));
        let idle = people(folder.path(), short, long).await;
        let token = idle.enter(&claimed, None).await.unwrap();
        for _ in 0..4 {
            tokio::time::sleep(short / 3).await;
            assert!(idle.find(&token).await.unwrap().is_some(), "what is used goes on");
        }
        tokio::time::sleep(short * 2).await;
        assert!(idle.find(&token).await.unwrap().is_none());
        let old = people(folder.path(), long, short).await;
        let token = old.enter(&claimed, None).await.unwrap();
        assert!(old.find(&token).await.unwrap().is_some());
        tokio::time::sleep(short * 2).await;
        assert!(old.find(&token).await.unwrap().is_none());
        assert!(old.find("made up").await.unwrap().is_none());
    }

    /// A config that is taken anew holds for who is logged in already.
    #[tokio::test]
    async fn who_shortens_what_a_login_lasts_means_those_that_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let claimed =
            json!({"issuer": "i", "tenant": "t", "user": "u", "role": "member", "class": null, "models": null});
        let claimed: Person = serde_json::from_value(claimed).unwrap();
        let (hour, moment) = (Duration::from_secs(3600), Duration::from_millis(50));
        let token = people(folder.path(), hour, hour * 12).await.enter(&claimed, None).await.unwrap();
        let shorter = people(folder.path(), hour, hour).await;
        let open = shorter.find(&token).await.unwrap().unwrap();
        assert_eq!(open.session.ends_ms - open.session.created_ms, 3_600_000);
        tokio::time::sleep(moment).await;
        assert!(people(folder.path(), moment, moment).await.find(&token).await.unwrap().is_none());
    }
}
