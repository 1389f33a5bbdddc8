//! `tidegate audit FILE`: are the books right? Every row is computed again from its tokens and its price, and every end
//! that the journal still has is looked up.

use crate::config::Config;
use anyhow::Context;
use std::fmt;
use tidegate_ledger::read_journal;
use tidegate_store::{Books, Db};

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Rows that were computed again.
    pub num_rows: u64,
    /// Their input tokens.
    pub input_tokens: u64,
    /// Their output tokens.
    pub output_tokens: u64,
    /// Their amounts, in billionths of the currency.
    pub amount: u128,
    /// Ends in the journal that were compared with their rows.
    pub num_compared: u64,
    /// Ends that wait for the store.
    pub num_waiting: u64,
    /// Generations that run, or that a crash left for the next start.
    pub num_open: u64,
    /// One line for each thing that is wrong.
    pub drift: Vec<String>,
}

const PAGE: u32 = 1000;

/// Checks the books that `config` names.
pub async fn audit(config: &Config) -> anyhow::Result<Audit> {
    let store = config.store.as_ref().context("the config has no [store], so there are no books")?;
    let db = Db::open(&store.place()?).await.context("the store cannot be opened")?;
    let (books, mut audit) = (Books::new(db.clone()), Audit::default());
    audit.rows(&books).await?;
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
            for row in page {
                let again = row.price.of(row.tokens);
                if again != row.amount {
                    let (name, billed) = (&row.generation, row.amount);
                    self.drift.push(format!("{name}: billed {billed} billionths, its tokens and price give {again}"));
                }
                if row.tokens.cached > row.tokens.input {
                    self.drift.push(format!("{}: more tokens were cached than read", row.generation));
                }
                self.num_rows += 1;
                self.input_tokens += row.tokens.input;
                self.output_tokens += row.tokens.output;
                self.amount += u128::from(row.amount);
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
                Some(_) => {}
            }
        }
        Ok(())
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rows      {} computed again from tokens and price", self.num_rows)?;
        writeln!(f, "tokens    {} read, {} generated", self.input_tokens, self.output_tokens)?;
        writeln!(f, "amount    {}.{:09}", self.amount / 1_000_000_000, self.amount % 1_000_000_000)?;
        writeln!(
            f,
            "journal   {} ends compared, {} wait, {} open",
            self.num_compared, self.num_waiting, self.num_open
        )?;
        for line in &self.drift {
            writeln!(f, "DRIFT     {line}")?;
        }
        write!(f, "drift     {}", self.drift.len())
    }
}
