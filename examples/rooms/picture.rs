//! Draws a few rooms as text: how many events came when, and which instance ran then.

use std::fmt::Write;
use std::time::Duration;

use crate::log::{Entry, What};

/// What one column stands for.
const COLUMN: Duration = Duration::from_millis(50);
/// Events of a column, from one on.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// By number.
const INSTANCES: [char; crate::INSTANCES] = ['1', '2', '3'];

pub(crate) fn draw(entries: &[Entry], rooms: &[usize]) -> String {
    let end = entries.last().map_or(Duration::ZERO, |entry| entry.at);
    let columns = column(end) + 1;
    let mut text = String::new();
    for &room in rooms {
        let of_room = || entries.iter().filter(move |entry| entry.room == room);
        let mut events = vec![0_usize; columns];
        let mut runs = vec![' '; columns];
        for entry in of_room() {
            let place = column(entry.at);
            match entry.what {
                What::Event => events[place] += 1,
                What::Start => runs[place] = INSTANCES[entry.instance],
                What::End => {}
            }
        }
        let bars = events.iter().map(|&count| if count == 0 { ' ' } else { BARS[count.min(8) - 1] });
        let _ = writeln!(text, " room {room:>2} events |{}|", bars.collect::<String>());
        let _ = writeln!(text, "         runs  |{}| {}", runs.iter().collect::<String>(), count(of_room()));
    }
    let per_second = 1_000 / COLUMN.as_millis();
    let mut scale = vec![' '; columns];
    for second in 0..=end.as_secs() {
        let place = (second as u128 * 1_000 / COLUMN.as_millis()) as usize;
        if let Some(mark) = scale.get_mut(place) {
            *mark = '|';
        }
    }
    let _ = writeln!(text, "       seconds  {}", scale.iter().collect::<String>());
    let _ = writeln!(
        text,
        "A column is {COLUMN:?} ({per_second} to a second); its height is the events in it, the digit the instance that ran.",
    );
    text
}

fn column(at: Duration) -> usize {
    (at.as_micros() / COLUMN.as_micros()) as usize
}

fn count<'a>(entries: impl Iterator<Item = &'a Entry>) -> usize {
    entries.filter(|entry| entry.what == What::Start).count()
}
