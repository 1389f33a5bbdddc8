//! What is asked for by whoever administers: keys, projects, and the people in them.

use bytes::Bytes;

/// Something to be shown or done. Bodies are as they came; the answer is JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Administration {
    /// The keys that were made while the server ran.
    Keys,
    /// Makes the key that the body describes; the answer shows it.
    MakeKey(Bytes),
    /// Makes another key of the same settings.
    RotateKey {
        /// Of both.
        name: String,
        /// Seconds for which the old one goes on.
        grace_s: u64,
    },
    /// Refuses the key of this name from now on.
    RevokeKey(String),
    /// A page of the projects.
    Projects(ProjectPage),
    /// The project of this id.
    Project(String),
    /// Makes the project that the body describes.
    MakeProject(Bytes),
    /// Changes a project.
    ChangeProject {
        /// Which.
        id: String,
        /// What of it, and to what.
        body: Bytes,
    },
    /// Ends the project of this id with its keys.
    ArchiveProject(String),
    /// The people in a project.
    Members {
        /// Its id.
        project: String,
        /// Which of them.
        page: ProjectPage,
    },
    /// One of them.
    Member {
        /// The project's id.
        project: String,
        /// The person.
        user: String,
    },
    /// Gives somebody a role in a project, or takes it.
    ChangeMember {
        /// The project's id.
        project: String,
        /// Who, and which role.
        change: MemberChange,
    },
}

impl Administration {
    /// What it changes, for the log; nothing where it only shows something.
    pub(crate) fn change(&self) -> Option<&'static str> {
        match self {
            Self::Keys | Self::Projects(_) | Self::Project(_) | Self::Members { .. } | Self::Member { .. } => None,
            Self::MakeKey(_) => Some("key made"),
            Self::RotateKey { .. } => Some("key rotated"),
            Self::RevokeKey(_) => Some("key revoked"),
            Self::MakeProject(_) => Some("project made"),
            Self::ChangeProject { .. } => Some("project changed"),
            Self::ArchiveProject(_) => Some("project archived"),
            Self::ChangeMember { change: MemberChange::Remove(_), .. } => Some("member removed"),
            Self::ChangeMember { .. } => Some("member given a role"),
        }
    }

    /// The project in which it changes something.
    pub(crate) fn project(&self) -> Option<String> {
        match self {
            Self::ChangeMember { project, .. } => Some(project.clone()),
            _ => None,
        }
    }
}

/// What becomes of somebody in a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// As the body says, which names the person and a role; whether in it already or not.
    Add(Bytes),
    /// This person has the role of the body from now on.
    Role(String, Bytes),
    /// This person is in it no more.
    Remove(String),
}

/// Which projects, or people of one, are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectPage {
    /// Those behind this one.
    pub after: Option<String>,
    /// How many.
    pub limit: usize,
    /// The archived ones too.
    pub archived: bool,
}
