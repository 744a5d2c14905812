//! Draws what the provider saw on one time axis, for a terminal of 100 columns.

use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::provider::{FIRST_LIMIT, Log};
use crate::verdict::Cost;

/// Columns between the two borders, at most.
const COLUMNS_MAX: u32 = 80;
/// Time per column where that is enough columns; else it is doubled until it is.
const COLUMN: Duration = Duration::from_millis(200);
/// Columns from one label of the axis to the next.
const LABEL_EVERY: u8 = 10;
/// Nothing, then eighths of a full block.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(crate) fn draw(log: &Log, costs: &[Cost]) -> String {
    let everything = log.served.iter().chain(&log.refused).max();
    let Some((began, ended)) = log.began.zip(everything.copied()) else { return String::new() };
    let mut axis = Axis { began, column: COLUMN, columns: 0 };
    while ended - began >= axis.column * COLUMNS_MAX {
        axis.column *= 2;
    }
    axis.columns = axis.of(ended) + 1;

    let full = f64::from(FIRST_LIMIT) * axis.column.as_secs_f64();
    let mut text = format!(
        "What the provider saw: a column is {} ms, {} is {FIRST_LIMIT} a second\n\n",
        axis.column.as_millis(),
        BLOCKS[8],
    );
    let limits = (0..axis.columns).map(|column| {
        let then = began + axis.column * u32::try_from(column).unwrap_or(u32::MAX);
        log.limits.iter().rev().find(|(since, _)| *since <= then).map_or(FIRST_LIMIT, |(_, limit)| *limit)
    });
    row(&mut text, "allowed", limits.map(|limit| block(f64::from(limit) / f64::from(FIRST_LIMIT))), "");
    let served = axis.count(&log.served);
    row(&mut text, "pages", served.iter().map(|count| block(*count as f64 / full)), log.served.len());
    let refused = axis.count(&log.refused);
    row(&mut text, "refused", refused.iter().map(|count| digit(*count)), log.refused.len());
    let mut marks = vec![' '; axis.columns];
    for (letter, (at, _)) in ('a'..).zip(&log.changes) {
        marks[axis.of(*at)] = letter;
    }
    row(&mut text, "changes", marks.into_iter(), "");
    text += &axis.labels();

    for ((letter, (at, says)), cost) in ('a'..).zip(&log.changes).zip(&costs[1..]) {
        let second = (*at - began).as_secs_f64();
        let Cost { refused, in_flight } = cost;
        let _ = write!(text, "\n{letter} {second:4.1} s: {says}; refused {refused}, in flight {in_flight}");
    }
    let total = (ended - began).as_secs_f64();
    text + &format!("\n\n{} pages, {} refused, in {total:.1} s", log.served.len(), log.refused.len())
}

struct Axis {
    began: Instant,
    column: Duration,
    columns: usize,
}

impl Axis {
    fn of(&self, at: Instant) -> usize {
        usize::try_from((at - self.began).as_nanos() / self.column.as_nanos()).unwrap_or(usize::MAX)
    }

    fn count(&self, times: &[Instant]) -> Vec<usize> {
        let mut counts = vec![0; self.columns];
        times.iter().for_each(|at| counts[self.of(*at)] += 1);
        counts
    }

    fn labels(&self) -> String {
        let spacing = usize::from(LABEL_EVERY);
        let mut line = format!("{:>8} ", "seconds");
        for (label, _first) in (0..).zip((0..self.columns).step_by(spacing)) {
            let time = self.column * u32::from(LABEL_EVERY) * label;
            let _ = write!(line, "|{:<width$}", time.as_secs(), width = spacing - 1);
        }
        line.trim_end().to_owned() + "\n"
    }
}

fn row(text: &mut String, title: &str, cells: impl Iterator<Item = char>, total: impl std::fmt::Display) {
    let cells: String = cells.collect();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{title:>8} |{cells}|{total:>4}");
}

/// The block for this part of a full one; of a little more than nothing something is seen.
fn block(part: f64) -> char {
    let eighths = (1_u8..=8).filter(|eighth| part * 8.0 > f64::from(eighth - 1)).count();
    BLOCKS[eighths]
}

fn digit(count: usize) -> char {
    match count {
        0 => ' ',
        1..=9 => char::from_digit(u32::try_from(count).unwrap_or(0), 10).unwrap_or('?'),
        _ => '+',
    }
}
