//! A stream guard under test: the gateway's own holdback hands it windows, in every chunking of a text, and the client
//! must read the same each time.
//!
//! A text of up to [`ALL_OF`] characters comes in each of its 2^(n-1) chunkings. Of a longer one come: the whole, each
//! cut in two, pieces of each length, and [`DRAWN`] chunkings drawn at random from a fixed seed. Each comes with an
//! ending on its last piece and with an empty window that ends it. The guide says the number (`docs/plugins.md`).

use super::cases::categories;
use super::fixture::Stream;
use super::workbench::context;
use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};
use tidegate_pipeline::holdback::{AtCap, Holdback};
use tidegate_sandbox::Plugin;
use tidegate_sandbox::stage::{Channel, Window, WindowAction};

/// With both endings that is 8,192 streams, about a second of the quickest guards.
const ALL_OF: usize = 13;
const DRAWN: usize = 64;
/// Longer texts are cut in two at this many places, evenly spread, and into pieces of as many lengths.
const CUTS: usize = 64;

/// What a client reads in every chunking.
pub(super) struct Reading {
    /// `text`, `halted`, `findings`.
    pub(super) outcome: Value,
    /// How many there were.
    pub(super) chunkings: usize,
}

/// Runs a text through the guard; fails where two chunkings differ.
pub(super) async fn read(plugin: &Plugin, Stream { channel, text }: &Stream, most: usize) -> anyhow::Result<Reading> {
    let guard = Guard { plugin, channel, cap: Cap::of(plugin, most) };
    let whole = guard.one(&[text.as_str()], false).await.context("in one piece")?;
    let mut count = 1;
    for cuts in chunkings(text) {
        let pieces = cut(text, &cuts);
        for apart in [false, true] {
            let outcome = guard.one(&pieces, apart).await.with_context(|| format!("in {pieces:?}"))?;
            if (&outcome["text"], &outcome["halted"]) != (&whole["text"], &whole["halted"]) {
                bail!("the client reads {outcome}\n  instead of       {whole}\n  in {pieces:?}, ending apart: {apart}");
            }
            count += 1;
        }
    }
    Ok(Reading { outcome: whole, chunkings: count })
}

/// How much the guard may withhold: what it promises, and no more than the server lets it.
#[derive(Clone, Copy)]
struct Cap {
    promised: Option<u32>,
    most: usize,
}

impl Cap {
    fn of(plugin: &Plugin, most: usize) -> Self {
        Self { promised: plugin.descriptor().holdback_bytes, most }
    }

    fn bytes(self) -> usize {
        self.promised.map_or(self.most, |promised| self.most.min(promised as usize))
    }

    /// What a server would end the answer for.
    fn passed(self, withheld: usize) -> anyhow::Error {
        match self.promised {
            Some(promised) if (promised as usize) < self.most => {
                anyhow!("it withholds {withheld} bytes, and its descriptor promises at most {promised}")
            }
            _ => anyhow!(
                "it withholds {withheld} bytes, and a server ends the answer at more than {} (`limits.holdback_bytes` of the \
                 stage); where operators are to allow more, say so here: `[limits] holdback_bytes = {withheld}`",
                self.most
            ),
        }
    }
}

/// A guard and what it is asked about.
struct Guard<'a> {
    plugin: &'a Plugin,
    channel: &'a Channel,
    cap: Cap,
}

impl Guard<'_> {
    /// One generation in the given pieces.
    async fn one(&self, pieces: &[&str], apart: bool) -> anyhow::Result<Value> {
        let &Self { plugin, channel, cap } = self;
        let mut held = Holdback::default();
        let (mut text, mut findings) = (String::new(), Vec::new());
        let ending_piece = pieces.iter().copied().chain(apart.then_some(""));
        let count = pieces.len() + usize::from(apart);
        for (idx, piece) in ending_piece.enumerate() {
            held.push(piece, Vec::new());
            let ends = idx + 1 == count;
            let window = held.window();
            let window = Window {
                seq: held.seq(),
                choice: 0,
                channel,
                text: window.text,
                settled: window.settled,
                ending: ends.then_some("stop"),
            };
            let inspection = plugin.inspect_window(&context(), held.carry(), window).await?;
            findings.extend(categories(&inspection.findings).into_iter().map(str::to_owned));
            if let WindowAction::Halt { refusal, farewell } = &inspection.action {
                text.push_str(farewell.as_deref().unwrap_or_default());
                return Ok(json!({"text": text, "halted": refusal.code, "findings": findings}));
            }
            let released = held.apply(inspection, ends, cap.bytes(), AtCap::Halt)?;
            match released.over_cap {
                Some(withheld) if ends => {
                    bail!("it withholds {withheld} bytes at the end, for which a server ends the answer")
                }
                // Arguments come whole in a server: nothing of them waits for more.
                Some(withheld) if !matches!(channel, Channel::ToolArguments(_)) => return Err(cap.passed(withheld)),
                _ => text.push_str(&released.text),
            }
        }
        Ok(json!({"text": text, "halted": null, "findings": findings}))
    }
}

/// Sets of places to cut at, counted in characters.
fn chunkings(text: &str) -> Vec<Vec<usize>> {
    let count = text.chars().count();
    if count <= ALL_OF {
        let borders = count.saturating_sub(1);
        return (0..1_usize << borders)
            .map(|set| (1..=borders).filter(|at| set >> (at - 1) & 1 == 1).collect())
            .collect();
    }
    let step = count.div_ceil(CUTS);
    let mut chunkings = vec![(1..count).collect::<Vec<_>>()];
    chunkings.extend((1..count).step_by(step).map(|at| vec![at]));
    chunkings.extend((2..count).step_by(step).map(|len| (len..count).step_by(len).collect()));
    let mut draw = blake3::Hasher::new().update(text.as_bytes()).finalize_xof();
    for _ in 0..DRAWN {
        let mut bits = vec![0_u8; count];
        draw.fill(&mut bits);
        chunkings.push((1..count).filter(|at| bits[*at] < 64).collect());
    }
    chunkings
}

fn cut<'a>(text: &'a str, cuts: &[usize]) -> Vec<&'a str> {
    let borders: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let mut pieces = Vec::new();
    let mut from = 0;
    for at in cuts.iter().filter_map(|cut| borders.get(*cut)).chain([&text.len()]) {
        pieces.push(&text[from..*at]);
        from = *at;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_short_text_comes_in_all_of_its_chunkings() {
        let pieces: BTreeSet<Vec<&str>> = chunkings("añ€b").iter().map(|cuts| cut("añ€b", cuts)).collect();
        assert_eq!(pieces.len(), 8);
        assert!(pieces.contains(&vec!["añ€b"]) && pieces.contains(&vec!["a", "ñ", "€", "b"]));
        assert_eq!(chunkings("").len(), 1);
    }

    #[test]
    fn a_guard_withholds_what_it_promises_and_no_more_than_a_server_lets_it() {
        for (promised, bytes, why) in [
            (None, 512, "a server ends the answer at more than 512"),
            (Some(64), 64, "its descriptor promises at most 64"),
            (Some(4096), 512, "a server ends the answer at more than 512"),
        ] {
            let cap = Cap { promised, most: 512 };
            assert_eq!(cap.bytes(), bytes);
            assert!(cap.passed(9999).to_string().contains(why), "{}", cap.passed(9999));
        }
    }

    #[test]
    fn pieces_make_the_text_whatever_its_length() {
        let text = "größe ".repeat(40);
        let all = chunkings(&text);
        assert!(all.len() > 150, "{}", all.len());
        assert!(all.iter().all(|cuts| cut(&text, cuts).concat() == text));
    }
}
