//! Draws who started how many jobs when, by the server's clock, for a terminal of 80 columns.

use std::fmt::Write;
use std::time::Duration;

use crate::log::Entry;
use crate::{Course, END_AT, INTERVAL, LIMIT, PAUSE, Us, WORKERS, micros};

const COLUMN: Duration = Duration::from_millis(250);
/// Nothing, then eighths of a full block.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A row for each worker, one for all of them, and one for what was done to them.
pub(crate) fn draw(log: &[Entry], course: &Course) -> String {
    let columns = whole(micros(END_AT)) / column_width();
    // What the rule earns in a column; as each worker's share doubles at times, half of it fills a worker's block.
    let most = LIMIT as usize * column_width() / whole(micros(INTERVAL));
    let mut text = format!(
        "Starts over time by the server's clock: a column is {} ms; in it {} is {} starts of a worker, {most} of all\n\n",
        COLUMN.as_millis(),
        BLOCKS[8],
        most / 2,
    );
    let mut row = |title: &str, cells: String, total: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{title:>10} |{cells}|{total:>5}");
    };
    let starts = || log.iter().filter(|entry| entry.fence().is_some());
    for name in WORKERS {
        let own: Vec<Us> = starts().filter(|start| start.worker == name).map(|start| start.at).collect();
        row(name, blocks(&own, most / 2, columns, course), own.len().to_string());
    }
    let all: Vec<Us> = starts().map(|start| start.at).collect();
    row("all", blocks(&all, most, columns, course), all.len().to_string());
    row("", events(columns, course), String::new());
    let seconds: String = (0..columns).step_by(4).map(|column| format!("|{:<3}", column / 4)).collect();
    let _ = writeln!(text, "{:>10} {}", "seconds", seconds.trim_end());
    let _ = writeln!(
        text,
        "\nh: {} holds its slots for good; k: it is killed; p: the fleet pauses",
        course.victim
    );
    text
}

fn blocks(starts: &[Us], full: usize, columns: usize, course: &Course) -> String {
    let mut counts = vec![0; columns];
    for &at in starts {
        counts[column_of(at, course).min(columns - 1)] += 1;
    }
    counts.iter().map(|count: &usize| BLOCKS[(count * 8).div_ceil(full).min(8)]).collect()
}

fn events(columns: usize, course: &Course) -> String {
    let mut cells = vec![' '; columns];
    let mut mark = |from: Us, to: Us, sign: char| {
        let (from, to) = (column_of(from, course), column_of(to, course));
        cells[from.min(columns - 1)..=to.min(columns - 1)].fill(sign);
    };
    mark(course.holding, course.killed.after, 'h');
    mark(course.killed.after, course.killed.after, 'k');
    mark(course.paused.after, course.paused.after + micros(PAUSE - COLUMN), 'p');
    cells.into_iter().collect()
}

fn column_of(at: Us, course: &Course) -> usize {
    whole(at.saturating_sub(course.begun)) / column_width()
}

fn column_width() -> usize {
    whole(micros(COLUMN))
}

fn whole(length: Us) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}
