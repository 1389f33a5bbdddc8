//! What callers may do, by the role that their credential gives them, within their tenant or within one project of it.

use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// The part that a caller has in its tenant or project; the first may the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallerRole {
    /// Answers for the tenant.
    Owner,
    /// Looks after its people and programs.
    Admin,
    /// A person.
    Member,
    /// A program; what a key is by default.
    #[default]
    Service,
    /// Looks, and changes nothing.
    ReadOnly,
}

/// How far a role goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// The whole tenant.
    #[default]
    Tenant,
    /// The project that the caller is in, and nothing beside it.
    Project,
}

/// What a request does, as far as roles go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// Has a model answer, which costs.
    Ask,
    /// Reads models, streams, conversations and responses.
    Read,
    /// Makes, changes and deletes them.
    Change,
    /// Reads what the tenant used.
    Usage,
    /// Reads the server's metrics, which are of all tenants: no role in one of them is enough.
    Metrics,
    /// Makes, replaces and takes back keys.
    Keys,
    /// Says who is in a project, and as what.
    Members,
    /// Makes, changes and archives projects.
    Projects,
    /// Administers the server.
    Operate,
}

/// Whether a role may do something, in the order of [`CallerRole::ALL`]; and whether that is a project's matter too, where a
/// role in the project is enough for it.
const TABLE: [(Act, &str, [bool; 5], bool); 9] = [
    (Act::Ask, "have a model answer", [true, true, true, true, false], true),
    (Act::Read, "read models, streams, conversations, responses", [true, true, true, true, true], true),
    (Act::Change, "make, change and delete them", [true, true, true, true, false], true),
    (Act::Usage, "read what was used", [true, true, false, true, true], true),
    (Act::Metrics, "read the server's metrics (`/metrics`)", [false, false, false, false, false], false),
    (Act::Keys, "make and end keys (`/admin/keys`)", [true, true, false, false, false], true),
    (Act::Members, "see a project, and say who is in it", [true, true, false, false, false], true),
    (Act::Projects, "make, change and archive projects of the tenant", [true, true, false, false, false], false),
    (Act::Operate, "administer the server (the rest of `/admin`)", [false, false, false, false, false], false),
];

impl CallerRole {
    /// All there are.
    pub const ALL: [Self; 5] = [Self::Owner, Self::Admin, Self::Member, Self::Service, Self::ReadOnly];

    /// Its name in configs and claims.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Admin => "admin",
            Self::Member => "member",
            Self::Service => "service",
            Self::ReadOnly => "read-only",
        }
    }

    /// The role of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }

    /// Whether it may do that within its tenant.
    pub fn may(self, act: Act) -> bool {
        let column = Self::ALL.into_iter().position(|role| role == self);
        let row = TABLE.iter().find(|(known, ..)| *known == act);
        row.zip(column).is_some_and(|((_, _, may, _), column)| may[column])
    }

    /// Whether it may do that as far as it goes.
    pub fn may_within(self, reach: Reach, act: Act) -> bool {
        let of_projects = || TABLE.iter().any(|(known, _, _, of_projects)| *known == act && *of_projects);
        self.may(act) && (reach == Reach::Tenant || of_projects())
    }

    /// Whether it may give that role to a key, or end a key that has it: an owner any, an admin those below its own.
    pub fn may_give(self, role: Self) -> bool {
        match self {
            Self::Owner => true,
            Self::Admin => !matches!(role, Self::Owner | Self::Admin),
            Self::Member | Self::Service | Self::ReadOnly => false,
        }
    }

    /// The table in Markdown, as `docs/identity.md` shows it.
    pub fn table() -> String {
        let mut text = String::from("| may |");
        Self::ALL.iter().for_each(|role| text.extend([" ", role.as_str(), " |"]));
        text.push_str(" in a project |\n|---|---|---|---|---|---|---|\n");
        for (_, what, may, of_projects) in TABLE {
            // Writing to a string does not fail.
            let _ = write!(text, "| {what} |");
            may.iter().chain([&of_projects]).for_each(|may| text.push_str(if *may { " yes |" } else { " |" }));
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_show_the_table() {
        println!("{}", CallerRole::table());
        assert!(
            include_str!("../../../docs/identity.md").contains(&CallerRole::table()),
            "docs/identity.md has another table"
        );
    }

    #[test]
    fn nobody_gives_more_than_the_own_role() {
        for giver in CallerRole::ALL {
            for role in CallerRole::ALL.into_iter().filter(|role| giver.may_give(*role)) {
                let acts = TABLE.iter().map(|(act, ..)| *act);
                assert!(acts.clone().all(|act| giver.may(act) || !role.may(act)), "{giver:?} gives {role:?}");
                assert!(giver.may(Act::Keys));
            }
            assert_eq!(CallerRole::named(giver.as_str()), Some(giver));
            assert!(!giver.may(Act::Operate));
            // A role in a project is never more than the same role in the tenant.
            for (act, ..) in TABLE {
                assert!(giver.may(act) || !giver.may_within(Reach::Project, act), "{giver:?} {act:?}");
            }
            assert!(
                !giver.may_within(Reach::Project, Act::Projects) && !giver.may_within(Reach::Project, Act::Metrics)
            );
        }
    }
}
