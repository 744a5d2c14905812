//! Holds `tests/cases.toml` to the four lists of cases, to the tests and to the planted faults.

use std::collections::BTreeSet;

use toml::{Table, Value};

use crate::repository::{File, read, rust_files};

/// Table, letter, how many digits a number has at least, last number.
const LISTS: [(&str, char, usize, u32); 5] = [
    ("promises", 'V', 2, 75),
    ("promises", 'T', 2, 113),
    ("peer", 'O', 2, 91),
    ("faults", 'F', 2, 46),
    ("throttle", 'B', 3, 142),
];

#[test]
fn every_case_is_listed_once_and_no_other() {
    // A doubled key is already an error of the parser.
    let cases = cases();
    let mut listed = BTreeSet::new();
    for (table, entries) in &cases {
        for id in entries.as_table().unwrap().keys() {
            listed.insert((table.clone(), id.clone()));
        }
    }
    let mut expected = BTreeSet::new();
    for (table, letter, digits, last) in LISTS {
        for number in 1..=last {
            expected.insert((table.to_owned(), format!("{letter}{number:0digits$}")));
        }
    }
    let missing: Vec<_> = expected.difference(&listed).collect();
    let unknown: Vec<_> = listed.difference(&expected).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    assert!(unknown.is_empty(), "unknown: {unknown:?}");
}

#[test]
fn every_case_says_what_becomes_of_it() {
    let mut wrong = Vec::new();
    for (id, entry) in entries() {
        let text = |key: &str| entry.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let known = ["test", "also", "fault", "hang", "later", "not"];
        if let Some(key) = entry.keys().find(|key| !known.contains(&key.as_str())) {
            wrong.push(format!("{id}: unknown key {key}"));
        }
        match (text("test"), text("later"), text("not")) {
            (None, None, None) => wrong.push(format!("{id}: none of test, later, not")),
            (test, later, Some(_)) if test.is_some() || later.is_some() => {
                wrong.push(format!("{id}: `not` beside another answer"));
            }
            (_, Some(later), _) if !later.contains("issue") => {
                wrong.push(format!("{id}: `later` names no issue"))
            }
            (None, ..) if entry.contains_key("fault") => wrong.push(format!("{id}: a fault without a test")),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_named_test_exists() {
    let files = rust_files(&["src", "tests/it"]);
    let missing: Vec<_> = entries()
        .into_iter()
        .flat_map(|(id, entry)| named(&entry).into_iter().map(move |test| (id.clone(), test)))
        .filter(|(_, test)| !exists(test, &files))
        .map(|(id, test)| format!("{id}: {test}"))
        .collect();
    assert!(missing.is_empty(), "named, but not found: {missing:#?}");
}

#[test]
fn every_listed_fault_is_planted_and_no_other() {
    let listed: BTreeSet<_> = entries()
        .into_iter()
        .filter(|(_, entry)| entry.get("fault").and_then(Value::as_bool) == Some(true))
        .map(|(id, _)| id)
        .collect();
    let planted: BTreeSet<_> =
        rust_files(&["src"]).iter().filter(|file| !is_test(file)).flat_map(planted_in).collect();
    let unplanted: Vec<_> = listed.difference(&planted).collect();
    let unlisted: Vec<_> = planted.difference(&listed).collect();
    assert!(unplanted.is_empty(), "`fault = true`, but no fault(\"..\") in src: {unplanted:?}");
    assert!(unlisted.is_empty(), "fault(\"..\") in src, but not listed: {unlisted:?}");
}

fn cases() -> Table {
    read("tests/cases.toml").parse().unwrap()
}

fn entries() -> Vec<(String, Table)> {
    cases()
        .into_iter()
        .flat_map(|(_, entries)| entries.as_table().unwrap().clone())
        .map(|(id, entry)| (id, entry.as_table().unwrap().clone()))
        .collect()
}

/// The tests of an entry.
fn named(entry: &Table) -> Vec<String> {
    let also = entry.get("also").map_or(&[][..], |also| also.as_array().expect("`also` is a list"));
    let all = entry.get("test").into_iter().chain(also);
    all.map(|test| test.as_str().expect("tests are named by texts").to_owned()).collect()
}

/// `it::a::b` is a test `b` in `tests/it/a.rs` or below `tests/it/a/`; `lib::a::tests::b` is one in `src/a/tests.rs`,
/// below it, or in `src/a.rs`.
fn exists(test: &str, files: &[File]) -> bool {
    let parts: Vec<_> = test.split("::").collect();
    let [root, modules @ .., name] = parts.as_slice() else { return false };
    let below = match *root {
        "it" => format!("tests/it/{}", modules.join("/")),
        "lib" => format!("src/{}", modules.join("/")),
        _ => return false,
    };
    let parent = below.strip_suffix("/tests").map(|parent| format!("{parent}.rs"));
    files.iter().any(|file| {
        let fits = file.path == format!("{below}.rs")
            || file.path.starts_with(&format!("{below}/"))
            || parent.as_ref() == Some(&file.path);
        fits && defines_test(file, name)
    })
}

/// A `#[test]` stands above the function, other attributes and comments between them at most.
fn defines_test(file: &File, name: &str) -> bool {
    let lines: Vec<_> = file.text.lines().map(str::trim).collect();
    let definition = format!("fn {name}(");
    lines.iter().enumerate().filter(|(_, line)| line.starts_with(&definition)).any(|(index, _)| {
        lines[..index]
            .iter()
            .rev()
            .take_while(|line| line.starts_with("#[") || line.starts_with("//"))
            .any(|line| *line == "#[test]")
    })
}

fn is_test(file: &File) -> bool {
    file.path.ends_with("/tests.rs") || file.path.contains("/tests/") || file.path.starts_with("src/model")
}

/// Ids of the form `V04` in calls of `fault(..)`; the model checker's own faults have names instead.
fn planted_in(file: &File) -> Vec<String> {
    let mut found = Vec::new();
    for (_, line) in file.code() {
        for call in line.split("fault(\"").skip(1) {
            let id = call.split('"').next().unwrap();
            let is_id = id
                .strip_prefix(|letter| "VTOFB".contains(letter))
                .is_some_and(|number| number.chars().all(|digit| digit.is_ascii_digit()));
            if is_id {
                found.push(id.to_owned());
            }
        }
    }
    found
}
