//! Reads this repository's own files for the tests about it.

use std::fs;
use std::path::{Path, PathBuf};

/// A text file of the repository.
pub(crate) struct File {
    /// Relative to the top, with `/` between the parts.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// The lines that are not comments.
    pub(crate) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

pub(crate) fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(top().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The Rust files below the given folders; folders that do not exist yet hold none.
pub(crate) fn rust_files(folders: &[&str]) -> Vec<File> {
    files(folders, &["rs"])
}

/// The files below the given folders with one of the extensions; "" stands for a file without one.
pub(crate) fn files(folders: &[&str], extensions: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    for folder in folders {
        walk(&top().join(folder), extensions, &mut found);
    }
    found.sort();
    found.iter().map(|path| file(path)).collect()
}

fn walk(path: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            walk(&entry.unwrap().path(), extensions, found);
        }
    } else if path.is_file() {
        let extension = path.extension().map_or("", |extension| extension.to_str().unwrap());
        if extensions.contains(&extension) {
            found.push(path.to_owned());
        }
    }
}

fn file(path: &Path) -> File {
    let relative = path.strip_prefix(top()).unwrap();
    let parts: Vec<_> = relative.iter().map(|part| part.to_str().unwrap()).collect();
    File { path: parts.join("/"), text: fs::read_to_string(path).unwrap() }
}

/// The words of a line: runs of letters, digits and `_`.
pub(crate) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty())
}
