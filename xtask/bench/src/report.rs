//! Figures as a table and as JSON.

use crate::median;
use std::fmt::Write;

/// Of a normal distribution: its standard deviation in median deviations, and the standard error of its median in those of its
/// mean. What is far off, as a round in which the machine did something else, moves neither.
const DEVIATION: f64 = 1.4826;
const OF_A_MEDIAN: f64 = 1.2533;

/// The figures of a run.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

struct Row {
    name: String,
    value: f64,
    /// The standard error of what is a median of several.
    error: Option<f64>,
    unit: &'static str,
    goal: Option<f64>,
}

impl Row {
    fn measured(&self) -> String {
        let error = self.error.map_or(String::new(), |error| format!(" ± {error:.2}"));
        format!("{:.2}{error} {}", self.value, self.unit)
    }
}

impl Report {
    /// Adds a figure, and says it: a run takes minutes.
    pub(crate) fn add(&mut self, name: &str, value: f64, unit: &'static str, goal: Option<f64>) {
        self.push(Row { name: name.to_owned(), value, error: None, unit, goal });
    }

    /// Adds the median of a figure's `values`, one of each round, and how far chance alone takes it.
    pub(crate) fn add_median(&mut self, name: &str, values: Vec<f64>, unit: &'static str, goal: Option<f64>) {
        let error = error_of_median(&values);
        self.push(Row { name: name.to_owned(), value: median(values), error: Some(error), unit, goal });
    }

    fn push(&mut self, row: Row) {
        eprintln!("{}: {}", row.name, row.measured());
        self.rows.push(row);
    }

    pub(crate) fn table(&self) -> String {
        let mut out = String::from("| figure | measured | goal |\n|---|---|---|\n");
        for row in &self.rows {
            let goal = row.goal.map_or(String::new(), |goal| format!("<= {goal} {}", row.unit));
            let _ = writeln!(out, "| {} | {} | {goal} |", row.name, row.measured());
        }
        out
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let of = |row: &Row| {
            let Row { name, value, error, unit, goal } = row;
            serde_json::json!({"figure": name, "value": value, "error": error, "unit": unit, "goal": goal})
        };
        self.rows.iter().map(of).collect()
    }
}

fn error_of_median(values: &[f64]) -> f64 {
    let middle = median(values.to_vec());
    let deviations = values.iter().map(|value| (value - middle).abs()).collect();
    OF_A_MEDIAN * DEVIATION * median(deviations) / (values.len() as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_told_with_its_error_which_one_bad_round_does_not_move() {
        let mut report = Report::default();
        for far in [5.0, 5000.0] {
            report.add_median("delay", vec![1.0, 2.0, 3.0, 4.0, far], "us", Some(2.5));
        }
        report.add("memory", 7.0, "MiB", None);
        let row = "| delay | 3.00 ± 0.83 us | <= 2.5 us |\n";
        let head = "| figure | measured | goal |\n|---|---|---|\n";
        assert_eq!(report.table(), format!("{head}{row}{row}| memory | 7.00 MiB |  |\n"));
        assert_eq!(
            report.json()[2],
            serde_json::json!({"figure": "memory", "value": 7.0, "error": null, "unit": "MiB", "goal": null})
        );
    }
}
