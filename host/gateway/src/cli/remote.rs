//! Commands that ask a running server.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// A running server, and who asks.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// The running server; default: what `TIDEGATE_SERVER` holds, or http://127.0.0.1:8080. Where administrators have an
    /// address of their own, keys and projects are there.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Name of the environment variable that holds the key to ask with.
    #[arg(long, default_value = "TIDEGATE_API_KEY")]
    pub api_key_env: String,
    /// Certificates in PEM that are trusted besides the public ones.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Print what the server answers, as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `key`. `key NAME` is `key new NAME` without any.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct KeyArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<KeyCommand>,
    /// Make a key of this name for the config.
    pub name: Option<String>,
}

/// What to do with keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Those that were made at the server.
    List {
        /// Where.
        #[command(flatten)]
        at: ServerArgs,
        /// Those that are refused too.
        #[arg(long)]
        all: bool,
    },
    /// Make one: for the config, or with --server at a running server.
    New(NewKeyArgs),
    /// Make another in the place of one.
    Rotate {
        /// The key's name.
        name: String,
        /// Where.
        #[command(flatten)]
        at: ServerArgs,
        /// Seconds for which the one that is replaced goes on.
        #[arg(long, default_value_t = 0)]
        grace_s: u64,
    },
    /// Take one back.
    Revoke {
        /// The key's name.
        name: String,
        /// Where.
        #[command(flatten)]
        at: ServerArgs,
    },
}

/// A new key. Without `--server` it is printed with its entry for a config, whatever the environment names.
#[derive(Debug, Args)]
#[command(mut_arg("server", |server| server.help("The running server that makes it; without it, a key for the config")))]
#[command(mut_arg("json", |json| json.requires("server")))]
#[command(mut_arg("ca", |ca| ca.requires("server")))]
pub struct NewKeyArgs {
    /// The key's name.
    pub name: String,
    /// Where.
    #[command(flatten)]
    pub at: ServerArgs,
    /// Whose data and share; default: the key's name, and for owners and admins their own tenant.
    #[arg(long, requires = "server")]
    pub tenant: Option<String>,
    /// The tenant's project that it is of: its id, or its name in the config.
    #[arg(long, requires = "server")]
    pub project: Option<String>,
    /// A model that it may name; may be given again; default: all.
    #[arg(long = "model", requires = "server")]
    pub models: Vec<String>,
    /// A plugin whose tools, passages and memories it has; may be given again; default: all. Guards see its requests in any
    /// case.
    #[arg(long = "plugin", requires = "server")]
    pub plugins: Vec<String>,
    /// An endpoint that it may use, such as `metrics`; may be given again; default: all but the metrics.
    #[arg(long = "endpoint", requires = "server")]
    pub endpoints: Vec<String>,
    /// From then on it is refused: 2027-01-31, or 2027-01-31T18:00:00Z.
    #[arg(long, requires = "server")]
    pub expires: Option<String>,
    /// It may administer the server.
    #[arg(long, requires = "server")]
    pub admin: bool,
    /// What it may do within its tenant: owner, admin, member, service or read-only.
    #[arg(long, requires = "server")]
    pub role: Option<String>,
    /// In place of --role: what it may do in its project, and nowhere else.
    #[arg(long, requires = "server", conflicts_with = "role")]
    pub project_role: Option<String>,
}

/// What to do with projects.
#[derive(Debug, Subcommand)]
pub enum ProjectCommand {
    /// All that the key may see.
    List {
        /// Where.
        #[command(flatten)]
        at: ServerArgs,
        /// The archived ones too.
        #[arg(long)]
        all: bool,
    },
    /// Make one.
    New(NewProjectArgs),
    /// Change one.
    Change {
        /// Its id.
        id: String,
        /// Where.
        #[command(flatten)]
        at: ServerArgs,
        /// What people call it.
        #[arg(long)]
        name: Option<String>,
        /// What else changes.
        #[command(flatten)]
        terms: ProjectTerms,
    },
    /// The people in one, and what they may do there.
    Members {
        /// Its id.
        id: String,
        /// Where.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// Put somebody into one, or give somebody in it another role.
    AddMember {
        /// Its id.
        id: String,
        /// The issuer's name in the server's config, a slash, and the user as its tokens have it.
        user: String,
        /// What they may do there: owner, admin, member, service or read-only.
        #[arg(long, default_value = "member")]
        role: String,
        /// Where.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// Take somebody out of one.
    RemoveMember {
        /// Its id.
        id: String,
        /// As `members` shows it.
        user: String,
        /// Where.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// End one, and its keys with it.
    Archive {
        /// Its id.
        id: String,
        /// Where.
        #[command(flatten)]
        at: ServerArgs,
    },
}

/// A new project.
#[derive(Debug, Args)]
pub struct NewProjectArgs {
    /// What people call it.
    pub name: String,
    /// Where.
    #[command(flatten)]
    pub at: ServerArgs,
    /// Whose, for administrators; default: the key's own tenant.
    #[arg(long)]
    pub tenant: Option<String>,
    /// What holds for it.
    #[command(flatten)]
    pub terms: ProjectTerms,
}

/// What holds for a project.
#[derive(Debug, Args)]
pub struct ProjectTerms {
    /// A model that its keys may name; may be given again.
    #[arg(long = "model")]
    pub models: Vec<String>,
    /// A plugin whose tools, passages and memories its keys have; may be given again.
    #[arg(long = "plugin")]
    pub plugins: Vec<String>,
    /// Limits as JSON: '{"requests_per_minute": 60}'.
    #[arg(long, value_name = "JSON")]
    pub limits: Option<String>,
    /// A budget as JSON: '{"monthly": 50.0}'.
    #[arg(long, value_name = "JSON")]
    pub budget: Option<String>,
    /// Whether nothing of the content of its requests is stored.
    #[arg(long, value_name = "true|false")]
    pub zero_retention: Option<bool>,
}

/// Options of `usage`.
#[derive(Debug, Args)]
pub struct UsageArgs {
    /// Where.
    #[command(flatten)]
    pub at: ServerArgs,
    /// From when: 2026-11-01, or 2026-11-01T18:00:00Z; default: as `days` says.
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Until when, exclusive; default: now.
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Days, with today.
    #[arg(long, default_value_t = 7, conflicts_with = "since")]
    pub days: u64,
    /// A sum for each of these: project_id, api_key_id, user_id, model, kind.
    #[arg(long, visible_alias = "by", value_delimiter = ',', default_value = "project_id,model")]
    pub group_by: Vec<String>,
    /// Of these projects only.
    #[arg(long = "project", value_name = "ID")]
    pub projects: Vec<String>,
    /// Print CSV in place of a table.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
}
