//! Figures as a table and as JSON.

use std::fmt::Write;

/// The figures of a run.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    goal: Option<f64>,
}

impl Report {
    /// Adds a figure, and says it: a run takes minutes.
    pub(crate) fn add(&mut self, name: &str, value: f64, unit: &'static str, goal: Option<f64>) {
        eprintln!("{name}: {value:.2} {unit}");
        self.rows.push(Row { name: name.to_owned(), value, unit, goal });
    }

    pub(crate) fn table(&self) -> String {
        let mut out = String::from("| figure | measured | goal |\n|---|---|---|\n");
        for row in &self.rows {
            let goal = row.goal.map_or(String::new(), |goal| format!("<= {goal} {}", row.unit));
            let _ = writeln!(out, "| {} | {:.2} {} | {goal} |", row.name, row.value, row.unit);
        }
        out
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let rows = self
            .rows
            .iter()
            .map(|row| serde_json::json!({"figure": row.name, "value": row.value, "unit": row.unit, "goal": row.goal}));
        serde_json::Value::Array(rows.collect())
    }
}
