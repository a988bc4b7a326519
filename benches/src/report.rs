//! Figures as a table for people and as JSON for programs.

use serde_json::{Value, json};

/// Goal of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// No goal.
    None,
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(goal) => value >= goal,
            Self::AtMost(goal) => value <= goal,
            Self::None => true,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(goal) => format!(">= {}", number(goal)),
            Self::AtMost(goal) => format!("<= {}", number(goal)),
            Self::None => String::new(),
        }
    }
}

/// One measured quantity of one broker, from one or several runs.
#[derive(Debug, Clone)]
pub struct Figure {
    /// The scenario.
    pub scenario: &'static str,
    /// Name of the measured broker.
    pub broker: &'static str,
    /// Measured quantity, with its unit.
    pub what: &'static str,
    /// Goal for mqcore.
    pub goal: Goal,
    /// One value for each run.
    pub values: Vec<f64>,
    /// Processor seconds that the broker used in all runs.
    pub cpu_seconds: f64,
    /// The work done in these seconds, counted as in `what`; `None`: not counted.
    pub done: Option<u64>,
    /// Processors that other programs kept busy during the worst of the runs; `None`: it does not matter here.
    pub disturbance: Option<f64>,
}

impl Figure {
    /// A figure without values. Other brokers have no goal.
    pub fn new(scenario: &'static str, broker: &'static str, what: &'static str, goal: Goal) -> Self {
        let goal = if broker == "mqcore" { goal } else { Goal::None };
        Self {
            scenario,
            broker,
            what,
            goal,
            values: Vec::new(),
            cpu_seconds: 0.0,
            done: None,
            disturbance: None,
        }
    }

    /// The median.
    pub fn median(&self) -> f64 {
        let mut values = self.values.clone();
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Whether the goal is reached.
    pub fn is_met(&self) -> bool {
        self.goal.is_met(self.median())
    }

    /// Nanoseconds of the broker's processor time per unit of work, including system calls: the load that it puts on
    /// a shared machine.
    pub fn cpu_ns_each(&self) -> Option<f64> {
        self.done.filter(|done| *done > 0).map(|done| self.cpu_seconds * 1e9 / done as f64)
    }

    fn spread(&self) -> (f64, f64) {
        let smallest = self.values.iter().copied().fold(f64::INFINITY, f64::min);
        let largest = self.values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (smallest, largest)
    }
}

/// mqcore's figure divided by that of another broker, if there is one.
fn ratio(figure: &Figure, figures: &[Figure]) -> Option<f64> {
    let same = |other: &&Figure| {
        other.broker == "mqcore" && other.scenario == figure.scenario && other.what == figure.what
    };
    let mqcore = figures.iter().find(same)?;
    (figure.broker != "mqcore").then(|| mqcore.median() / figure.median())
}

/// A table.
pub fn table(figures: &[Figure]) -> String {
    let heads = [
        "scenario",
        "broker",
        "what",
        "median",
        "smallest..largest",
        "goal",
        "",
        "cpu ns each",
        "disturbed",
        "mqcore / it",
    ];
    let mut rows = vec![heads.map(String::from)];
    for figure in figures {
        let (smallest, largest) = figure.spread();
        let verdict = match (figure.goal, figure.is_met()) {
            (Goal::None, _) => "",
            (_, true) => "met",
            (_, false) => "MISSED",
        };
        rows.push([
            figure.scenario.into(),
            figure.broker.into(),
            figure.what.into(),
            number(figure.median()),
            if figure.values.len() > 1 {
                format!("{}..{}", number(smallest), number(largest))
            } else {
                String::new()
            },
            figure.goal.text(),
            verdict.into(),
            figure.cpu_ns_each().map(number).unwrap_or_default(),
            figure.disturbance.map(|share| format!("{:.0} %", share * 100.0)).unwrap_or_default(),
            ratio(figure, figures).map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
        ]);
    }
    let widths: [usize; 10] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        for (cell, width) in row.iter().zip(widths) {
            text.push_str(&format!("{cell:width$}  "));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// The figures for programs.
pub fn json(figures: &[Figure]) -> Value {
    let values: Vec<Value> = figures
        .iter()
        .map(|figure| {
            json!({
                "scenario": figure.scenario,
                "broker": figure.broker,
                "what": figure.what,
                "median": figure.median(),
                "values": figure.values,
                "goal": figure.goal.text(),
                "met": figure.is_met(),
                "cpu_seconds": figure.cpu_seconds,
                "cpu_ns_each": figure.cpu_ns_each(),
                "disturbance": figure.disturbance,
                "ratio": ratio(figure, figures),
            })
        })
        .collect();
    json!({"figures": values})
}

/// A number for people: without decimals from a hundred on, with commas.
fn number(value: f64) -> String {
    if value.abs() < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_thousands() {
        assert_eq!(number(2_345_678.4), "2,345,678");
        assert_eq!(number(999.9), "1,000");
        assert_eq!(number(11.26), "11.3");
    }

    #[test]
    fn processor_time_is_reported_per_counted_unit() {
        let mut figure = Figure::new("s", "mqcore", "w", Goal::None);
        figure.cpu_seconds = 3.0;
        assert_eq!(figure.cpu_ns_each(), None);
        figure.done = Some(2_000_000);
        assert_eq!(figure.cpu_ns_each(), Some(1500.0));
        assert!(table(&[figure]).contains("1,500"));
    }

    #[test]
    fn the_median_of_runs_decides_whether_a_promise_is_kept() {
        let mut figure = Figure::new("s", "mqcore", "w", Goal::AtLeast(10.0));
        figure.values = vec![1.0, 50.0, 11.0];
        assert!(figure.is_met());
        figure.values = vec![1.0, 50.0, 9.0];
        assert!(!figure.is_met());
    }
}
