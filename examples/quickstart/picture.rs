//! Draws the runs one below the other on a common time axis, for a terminal of 100 columns.

use std::fmt::Write;
use std::time::Duration;

use crate::run::Run;
use crate::service::Quota;

/// Columns between the two borders, at most.
const COLUMNS_MAX: u32 = 70;
/// Time per column where that is enough columns; else it is doubled until it is.
const COLUMN: Duration = Duration::from_millis(200);
/// Columns from one label of the axis to the next.
const LABEL_EVERY: u8 = 10;
/// Nothing, then eighths of a full block.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const RESET: &str = "\x1b[0m";

/// Each run has a row for requests served, as high as there were many, and one for those refused.
pub(crate) fn draw(runs: &[&Run], quota: &Quota, coloured: bool) -> String {
    let longest = runs.iter().map(|run| run.elapsed).max().unwrap_or_default();
    let mut column = COLUMN;
    while longest >= column * COLUMNS_MAX {
        column *= 2;
    }
    let columns = whole_steps(column, longest) + 1;
    let full = whole_steps(quota.interval / quota.limit, column).max(1);

    let mut text = format!(
        "Starts over time as the service saw them: a column is {} ms, {} in it is {full} starts, x a refusal\n\n",
        column.as_millis(),
        BLOCKS[8],
    );
    let mut row = |title: String, colour: &str, cells: String, total: usize| {
        let (colour, reset) = if coloured { (colour, RESET) } else { ("", "") };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{title:>15} |{colour}{cells}{reset}|{total:>4}");
    };
    for run in runs {
        let served = count_by_column(&run.log.starts, column, columns);
        let blocks = served.iter().map(|count| BLOCKS[(count * 8).div_ceil(full).min(8)]).collect();
        row(format!("{} served", run.name), GREEN, blocks, run.log.starts.len());

        let refused = count_by_column(&run.log.refusals, column, columns);
        let crosses = refused.iter().map(|count| if *count > 0 { 'x' } else { ' ' }).collect();
        row("refused".into(), RED, crosses, run.log.refusals.len());
    }
    text + &axis(column, columns)
}

fn axis(column: Duration, columns: usize) -> String {
    let spacing = usize::from(LABEL_EVERY);
    let mut axis = format!("{:>15} ", "seconds");
    for (label, _first) in (0..).zip((0..columns).step_by(spacing)) {
        let time = column * u32::from(LABEL_EVERY) * label;
        let _ = write!(axis, "|{:<width$}", time.as_secs(), width = spacing - 1);
    }
    axis.trim_end().to_owned() + "\n"
}

/// What happened after the last column counts in the last one: a total must not lose anything.
fn count_by_column(times: &[Duration], column: Duration, columns: usize) -> Vec<usize> {
    let mut counts = vec![0; columns];
    for time in times {
        counts[whole_steps(column, *time).min(columns - 1)] += 1;
    }
    counts
}

fn whole_steps(step: Duration, span: Duration) -> usize {
    usize::try_from(span.as_nanos() / step.as_nanos()).unwrap_or(usize::MAX)
}
