//! `tidegate audit FILE`: are the books right? Every row is computed again from its tokens, its calls and their prices, and
//! every end that the journal still has, and every answer that is kept, is looked up.

use crate::config::Config;
use anyhow::Context;
use std::fmt;
use tidegate_ledger::read_journal;
use tidegate_store::{Billed, Books, Counted, Db, KeptAnswer};
use tidegate_types::clock::unix_ms;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Rows that were computed again.
    pub num_rows: u64,
    /// Their input tokens.
    pub input_tokens: u64,
    /// Their output tokens.
    pub output_tokens: u64,
    /// Their calls of tools.
    pub tool_calls: u64,
    /// Their calls of retrievers.
    pub retrieval_calls: u64,
    /// Their amounts, in billionths of the currency.
    pub amount: u128,
    /// Ends in the journal that were compared with their rows.
    pub num_compared: u64,
    /// Kept answers that were compared with their rows.
    pub num_answers: u64,
    /// Ends that wait for the store.
    pub num_waiting: u64,
    /// Generations that run, or that a crash left for the next start.
    pub num_open: u64,
    /// One line for each thing that is wrong.
    pub drift: Vec<String>,
}

const PAGE: u32 = 1000;
/// A kept answer whose row is not here after this time: no journal waits so long where the database took the answer.
const LATE_MS: u64 = 60 * 60 * 1000;

/// Checks the books that `config` names.
pub async fn audit(config: &Config) -> anyhow::Result<Audit> {
    let store = config.store.as_ref().context("the config has no [store], so there are no books")?;
    let db = Db::open_as_it_is(&store.place()?).await.context("the store cannot be opened")?;
    let (books, mut audit) = (Books::new(db.clone()), Audit::default());
    audit.rows(&books).await?;
    audit.strays(&books).await?;
    audit.answers(&books).await?;
    audit.journal(&books, &store.journal()).await?;
    db.close().await;
    Ok(audit)
}

impl Audit {
    async fn rows(&mut self, books: &Books) -> anyhow::Result<()> {
        let mut after = String::new();
        loop {
            let page = books.page(&after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after.clone_from(&last.generation);
            page.iter().for_each(|row| self.row(row));
        }
    }

    fn row(&mut self, row: &Billed) {
        let (name, calls) = (&row.generation, Counted::of(&row.calls));
        let again = row.price.of(row.tokens).saturating_add(calls.amount);
        if again != row.amount {
            let billed = row.amount;
            let line = format!("{name}: billed {billed} billionths, its tokens, calls and prices give {again}");
            self.drift.push(line);
        }
        if calls != row.counted {
            self.drift.push(format!("{name}: counts {:?}, its calls one by one give {calls:?}", row.counted));
        }
        if row.tokens.cached > row.tokens.input {
            self.drift.push(format!("{name}: more tokens were cached than read"));
        }
        self.num_rows += 1;
        self.input_tokens += row.tokens.input;
        self.output_tokens += row.tokens.output;
        self.tool_calls += calls.tools;
        self.retrieval_calls += calls.retrievals;
        self.amount += u128::from(row.amount);
    }

    /// Calls that belong to nothing that is billed.
    async fn strays(&mut self, books: &Books) -> anyhow::Result<()> {
        let strays = books.num_stray_calls().await?;
        if strays > 0 {
            self.drift.push(format!("{strays} rows of calls belong to no generation that is billed"));
        }
        Ok(())
    }

    /// What answers say they used, as their callers were told, against what is billed for them.
    async fn answers(&mut self, books: &Books) -> anyhow::Result<()> {
        let mut after = String::new();
        loop {
            let page = books.answers(&after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after.clone_from(&last.generation);
            page.iter().for_each(|answer| self.answer(answer));
        }
    }

    fn answer(&mut self, answer: &KeptAnswer) {
        let (name, [input, output]) = (&answer.generation, answer.said);
        match answer.billed {
            // A guard gave it before any model was asked, which has no row.
            None if answer.said == [0, 0] => {}
            None if answer.created_ms.saturating_add(LATE_MS) < unix_ms() => {
                self.drift.push(format!("{name}: its answer is kept, but it is not billed"));
            }
            // It may be on its way, in this or another gateway's journal.
            None => {}
            Some(billed) => {
                self.num_answers += 1;
                if billed != answer.said {
                    let [billed_input, billed_output] = billed;
                    self.drift.push(format!(
                        "{name}: billed {billed_input} tokens read and {billed_output} generated, its answer says {input} \
                         and {output}"
                    ));
                }
            }
        }
    }

    async fn journal(&mut self, books: &Books, folder: &std::path::Path) -> anyhow::Result<()> {
        let contents = read_journal(folder).context("the journal cannot be read")?;
        let taken = books.position(&contents.id).await?;
        self.num_open = contents.num_open as u64;
        if contents.num_damaged > 0 {
            self.drift.push(format!("{} files of the journal are damaged", contents.num_damaged));
        }
        for (behind, entry) in contents.ended {
            if behind > taken {
                self.num_waiting += 1;
                continue;
            }
            self.num_compared += 1;
            let name = &entry.opening.generation;
            match books.of(name).await? {
                None => self.drift.push(format!("{name}: the journal was taken past its end, but it is not billed")),
                Some(row) if row.tokens != entry.tokens => {
                    self.drift.push(format!("{name}: billed {:?}, the journal says {:?}", row.tokens, entry.tokens));
                }
                Some(row) if row.calls != entry.calls => {
                    self.drift.push(format!("{name}: billed {:?}, the journal says {:?}", row.calls, entry.calls));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rows      {} computed again from tokens, calls and prices", self.num_rows)?;
        writeln!(f, "tokens    {} read, {} generated", self.input_tokens, self.output_tokens)?;
        writeln!(f, "calls     {} of tools, {} of retrievers", self.tool_calls, self.retrieval_calls)?;
        writeln!(f, "amount    {}.{:09}", self.amount / 1_000_000_000, self.amount % 1_000_000_000)?;
        writeln!(
            f,
            "journal   {} ends compared, {} wait, {} open",
            self.num_compared, self.num_waiting, self.num_open
        )?;
        writeln!(f, "answers   {} that are kept compared", self.num_answers)?;
        for line in &self.drift {
            writeln!(f, "DRIFT     {line}")?;
        }
        write!(f, "drift     {}", self.drift.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_and_not_billed_is_drift_once_it_is_late() {
        let drift = |said: [u64; 2], created_ms: u64| {
            let mut audit = Audit::default();
            audit.answer(&KeptAnswer { generation: "g".into(), created_ms, said, billed: None });
            audit.drift.len()
        };
        assert_eq!(drift([7, 5], 1), 1);
        assert_eq!(drift([7, 5], unix_ms()), 0, "it may be on its way");
        assert_eq!(drift([0, 0], 1), 0, "a guard gave it, and no model was asked");
    }
}
