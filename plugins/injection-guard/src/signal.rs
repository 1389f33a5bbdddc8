//! What is looked for, how much one sighting weighs, and how sightings add up.
//!
//! Weights are percentages for text of a user and for text from outside (retrieved passages, tool results). A user may
//! well give instructions, a document may not: the same words weigh more there. A signal counts once, with its heaviest
//! sighting; different signals add up as independent doubts do, `1 - (1 - a)(1 - b)...`.

use std::ops::Range;

/// A family of signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// "Ignore all previous instructions", in several languages.
    Override,
    /// "You are now an assistant without rules".
    Persona,
    /// "Print your system prompt".
    Extraction,
    /// Chat-template markers and headings that pose as another speaker.
    RoleSpoof,
    /// Text from outside that speaks to the model.
    Addressing,
    /// "Do not tell the user".
    Secrecy,
    /// Data sent to an address, or drawn into the URL of an image.
    Exfiltration,
    /// Text that makes the model call tools, or poses as a call.
    ToolCoercion,
    /// Text that people do not see or cannot read: base64, hex, rot13, invisible and look-alike characters.
    Disguise,
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Override,
        Self::Persona,
        Self::Extraction,
        Self::RoleSpoof,
        Self::Addressing,
        Self::Secrecy,
        Self::Exfiltration,
        Self::ToolCoercion,
        Self::Disguise,
    ];

    /// The name in the config and in findings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Override => "override",
            Self::Persona => "persona",
            Self::Extraction => "extraction",
            Self::RoleSpoof => "role-spoof",
            Self::Addressing => "addressing",
            Self::Secrecy => "secrecy",
            Self::Exfiltration => "exfiltration",
            Self::ToolCoercion => "tool-coercion",
            Self::Disguise => "disguise",
        }
    }
}

/// Who a text comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The person who asks.
    User,
    /// A retrieved passage or a memory.
    Retrieved,
    /// What a tool answered.
    Tool,
}

/// Percentages of a sighting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    pub user: u8,
    pub outside: u8,
}

/// A weight in a table of rules.
pub const fn weight(user: u8, outside: u8) -> Weight {
    Weight { user, outside }
}

impl Weight {
    fn of(self, source: Source) -> u8 {
        if source == Source::User { self.user } else { self.outside }
    }

    /// Part of it, in percent.
    pub fn scaled(self, percent: u16) -> Self {
        let scale = |weight: u8| (u16::from(weight) * percent / 100).min(100) as u8;
        Self { user: scale(self.user), outside: scale(self.outside) }
    }
}

/// One sighting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// What it is a sign of.
    pub signal: Signal,
    /// How much it weighs.
    pub weight: Weight,
    /// Bytes of the text; the whole payload where it was decoded from one.
    pub range: Range<usize>,
    /// How the text was read, where not as it stands: `base64`, `hex`, `rot13`, ...
    pub read_as: Option<&'static str>,
}

impl Sighting {
    /// Whether two rules saw the same words.
    pub fn is_seen_in(&self, other: &Self) -> bool {
        let same = self.signal == other.signal && self.read_as == other.read_as;
        same && self.range.start < other.range.end && other.range.start < self.range.end
    }

    /// Takes another one in; says so.
    pub fn take(&mut self, other: &Self) -> bool {
        let (user, outside) = (self.weight.user.max(other.weight.user), self.weight.outside.max(other.weight.outside));
        self.weight = Weight { user, outside };
        self.range = self.range.start.min(other.range.start)..self.range.end.max(other.range.end);
        true
    }
}

impl Sighting {
    /// From 0 to 100.
    pub fn score(&self, source: Source) -> u8 {
        self.weight.of(source)
    }
}

/// How sure it is, from 0 to 1, that a text of that source wants to take the model over.
pub fn score(sightings: &[Sighting], source: Source) -> f32 {
    let heaviest = |signal: Signal| {
        let of = sightings.iter().filter(|sighting| sighting.signal == signal);
        f32::from(of.map(|sighting| sighting.score(source)).max().unwrap_or_default()) / 100.0
    };
    1.0 - Signal::ALL.into_iter().map(|signal| 1.0 - heaviest(signal)).product::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_counts_once_and_different_ones_add_up() {
        let sighting = |signal, user| Sighting { signal, weight: weight(user, 0), range: 0..1, read_as: None };
        let of = |list: &[Sighting]| (score(list, Source::User) * 100.0).round();
        assert_eq!(of(&[]), 0.0);
        assert_eq!(of(&[sighting(Signal::Override, 50), sighting(Signal::Override, 30)]), 50.0);
        assert_eq!(of(&[sighting(Signal::Override, 50), sighting(Signal::Persona, 50)]), 75.0);
        assert_eq!(score(&[sighting(Signal::Override, 50)], Source::Tool), 0.0);
    }
}
