//! What the journal holds and the database gets.

use crate::call::Calls;
use crate::price::Price;
use crate::tally::Tokens;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A generation begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// Names the generation, in the answer's own id and everywhere.
    pub generation: String,
    /// The request's id, which its caller may have chosen.
    pub request_id: String,
    /// Who pays.
    pub tenant: String,
    /// For which project, where it is not the tenant's own. Beside the rest of the record (`segment.rs`), which has had
    /// the same form from the start.
    #[serde(skip)]
    pub project: Option<String>,
    /// With which key.
    pub key_name: String,
    /// For whom, where the caller says.
    pub end_user: Option<String>,
    /// The model that answers.
    pub model: String,
    /// What its tokens cost at this time.
    pub price: Price,
    /// Milliseconds since 1970.
    pub begun_ms: u64,
}

impl Opening {
    /// What it was for: `generation`, or what the server made behind an answer, `summary` or `title`. The server begins
    /// the generation's name with that, so that the journals of older programs are read as ever.
    pub fn kind(&self) -> &'static str {
        let named = ["summary", "title"]
            .into_iter()
            .find(|kind| self.generation.strip_prefix(kind).is_some_and(|rest| rest.starts_with('-')));
        named.unwrap_or("generation")
    }
}

/// A generation has ended: what is billed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What began.
    pub opening: Opening,
    /// What was used.
    pub tokens: Tokens,
    /// What was called. Beside the rest of the record, as a project is.
    #[serde(skip)]
    pub calls: Calls,
    /// `answered`, `failed`, `client-gone`, or `recovered` after a crash.
    pub outcome: String,
    /// Milliseconds since 1970.
    pub ended_ms: u64,
}

impl Entry {
    /// What it costs, in billionths of the operator's currency.
    pub fn amount(&self) -> u64 {
        self.opening.price.of(self.tokens).saturating_add(self.calls.amount())
    }

    /// Whether nothing was used: what was refused before anything was generated.
    pub fn is_nothing(&self) -> bool {
        self.tokens == Tokens::default() && self.calls.is_empty()
    }
}

/// A budget was used up to a bound of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// Names this alert: whose budget, which window, which bound.
    pub id: String,
    /// `tenant`, `project` or `key`.
    pub scope: String,
    /// Its name.
    pub name: String,
    /// The day or month, in UTC.
    pub window: String,
    /// `soft` or `hard`.
    pub bound: String,
    /// What is spent, in billionths.
    pub spent: u64,
    /// What may be, in billionths.
    pub limit: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
}

/// What a database, and others, are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A generation ended.
    Used(Entry),
    /// A budget's bound was reached.
    Alert(Alert),
}

impl Event {
    /// What was used, where it is that.
    pub fn used(&self) -> Option<&Entry> {
        match self {
            Self::Used(entry) => Some(entry),
            Self::Alert(_) => None,
        }
    }
}

/// One line of the journal. In the files the number of a kind is its place here: new ones come last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    /// A generation begins, under a number that its marks carry.
    Open(u64, Opening),
    /// So much of it has been counted.
    Mark(u64, Tokens),
    /// It has ended. Complete in itself, so that a drain needs nothing that came before.
    End(u64, Entry),
    /// A budget's bound was reached.
    Alert(Alert),
    /// As [`Record::Open`], for a project.
    OpenFor(String, u64, Opening),
    /// As [`Record::End`], for a project.
    EndFor(String, u64, Entry),
    /// So much of it has been called.
    MarkCalls(u64, Calls),
    /// As [`Record::End`], for a generation with calls, and a project where there is one.
    EndWith(Calls, Option<String>, u64, Entry),
}

impl Record {
    /// As it is written: project and calls beside what older records have.
    pub(crate) fn written(&self) -> Cow<'_, Self> {
        match self {
            Self::Open(number, opening) => match &opening.project {
                Some(project) => Cow::Owned(Self::OpenFor(project.clone(), *number, opening.clone())),
                None => Cow::Borrowed(self),
            },
            Self::End(number, entry) if !entry.calls.is_empty() => {
                let project = entry.opening.project.clone();
                Cow::Owned(Self::EndWith(entry.calls.clone(), project, *number, entry.clone()))
            }
            Self::End(number, entry) => match &entry.opening.project {
                Some(project) => Cow::Owned(Self::EndFor(project.clone(), *number, entry.clone())),
                None => Cow::Borrowed(self),
            },
            _ => Cow::Borrowed(self),
        }
    }

    /// As it is used: project and calls where they belong, in the two kinds that others know.
    pub(crate) fn read(self) -> Self {
        match self {
            Self::OpenFor(project, number, opening) => {
                Self::Open(number, Opening { project: Some(project), ..opening })
            }
            Self::EndFor(project, number, mut entry) => {
                entry.opening.project = Some(project);
                Self::End(number, entry)
            }
            Self::EndWith(calls, project, number, mut entry) => {
                (entry.calls, entry.opening.project) = (calls, project);
                Self::End(number, entry)
            }
            other => other,
        }
    }
}
