//! Holds the repository to its own rules: layers, sizes, names, and files that must be there.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::repository::{File, files, read, rust_files, top, words};

/// Lowest first. A module uses its own layer and those before it.
const LAYERS: [&[&str]; 7] = [
    &["clock", "error", "event", "feedback", "os", "planted", "rule", "sync"],
    &["store"],
    &["lease"],
    &["scheduler"],
    &["throttle", "valve"],
    &["client"],
    &["ffi"],
];

/// Beside the layers: the table of contents, documentation, and what only tests use.
const OUTSIDE: [&str; 4] = ["guarantees", "lib", "model", "testing"];

const FOLDERS: [&str; 5] = ["src", "tests", "benches", "examples", "fuzz"];

const LINES_MAX: usize = 500;

const TOP: [&str; 21] = [
    ".ci",
    ".config",
    ".git",
    ".gitattributes",
    ".github",
    ".gitignore",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "SECURITY.md",
    "benches",
    "clippy.toml",
    "deny.toml",
    "examples",
    "fuzz",
    "rustfmt.toml",
    "src",
    "tests",
];

#[test]
fn a_module_uses_what_is_below_it() {
    let mut wrong = Vec::new();
    for file in rust_files(&["src"]).iter().filter(|file| !is_test(file)) {
        let module = module_of(file);
        if OUTSIDE.contains(&module) {
            continue;
        }
        let Some(own) = layer(module) else {
            wrong.push(format!("{}: no layer for module {module}", file.path));
            continue;
        };
        for used in used_modules(file) {
            if OUTSIDE.contains(&used.as_str()) {
                continue;
            }
            match layer(&used) {
                None => wrong.push(format!("{}: crate::{used} hides its layer; name the module", file.path)),
                Some(other) if other > own => {
                    wrong.push(format!("{}: uses {used}, which is above", file.path))
                }
                Some(_) => {}
            }
        }
    }
    none(&wrong);
}

#[test]
fn no_file_is_longer_than_its_reader_can_hold() {
    let mut wrong = Vec::new();
    for file in rust_files(&FOLDERS) {
        let lines = file.text.lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("{}: {lines} lines", file.path));
        }
    }
    none(&wrong);
}

#[test]
fn every_file_says_what_it_is() {
    let mut wrong = Vec::new();
    for file in rust_files(&FOLDERS) {
        if !file.text.starts_with("//! ") {
            wrong.push(format!("{}: does not open with //!", file.path));
        }
    }
    none(&wrong);
}

#[test]
fn a_file_is_named_for_what_is_in_it() {
    let banned = ["mod", "utils", "util", "common", "types", "helpers", "helper", "manager"];
    let mut wrong = Vec::new();
    for file in rust_files(&FOLDERS) {
        if file.path.split(['/', '.']).any(|part| banned.contains(&part)) {
            wrong.push(file.path);
        }
    }
    none(&wrong);
}

#[test]
fn nothing_is_left_to_do() {
    let banned = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let mut everything = files(&FOLDERS, &["rs", "md", "toml", "lua", "h", ""]);
    everything
        .extend(files(&[".ci", ".config", "README.md", "CHANGELOG.md", "Cargo.toml"], &["", "md", "toml"]));
    let mut wrong = Vec::new();
    for file in &everything {
        for (number, line) in file.lines() {
            if words(line).any(|word| banned.contains(&word)) {
                wrong.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    none(&wrong);
}

#[test]
fn unsafe_code_lives_in_its_two_places() {
    let mut wrong = Vec::new();
    for file in rust_files(&["src"]) {
        if ["os", "ffi"].contains(&module_of(&file)) {
            continue;
        }
        for (number, line) in file.code() {
            if words(line).any(|word| word == "unsafe") {
                wrong.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    none(&wrong);
}

#[test]
fn every_dependency_says_why_it_is_there() {
    let manifest = read("Cargo.toml");
    let mut wrong = Vec::new();
    let mut explained = false;
    let mut section = "";
    for line in manifest.lines() {
        match line.trim() {
            "" => explained = false,
            comment if comment.starts_with('#') => explained = true,
            header if header.starts_with('[') => section = header,
            entry if section.ends_with("dependencies]") => {
                if !explained {
                    wrong.push(entry.to_owned());
                }
                // Users get each of these, so each has its own reason; tools of ours may share one.
                explained &= section == "[dev-dependencies]";
            }
            _ => {}
        }
    }
    none(&wrong);
}

#[test]
fn every_dependency_is_used() {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let code = rust_files(&["src", "tests", "benches", "examples"]);
    let used: BTreeSet<&str> = code.iter().flat_map(File::code).flat_map(|(_, line)| words(line)).collect();
    let mut wrong = dependencies(&manifest);
    wrong.retain(|name| !used.contains(name.replace('-', "_").as_str()));
    none(&wrong);
}

#[test]
fn no_dependency_needs_a_newer_compiler() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let version = Command::new("rustc").arg("-vV").current_dir(top()).output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    // Only this platform's packages are sure to have been fetched.
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--all-features"])
        .args(["--filter-platform", host])
        .current_dir(top())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata = String::from_utf8(output.stdout).unwrap();
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let ours = release(manifest["package"]["rust-version"].as_str().unwrap());
    let stated = stated_versions(&metadata);
    assert!(stated.len() > 5, "cargo's answer has another shape: {stated:?}");
    let mut wrong = stated;
    wrong.retain(|(_, needs)| release(needs) > ours);
    none(&wrong);
}

#[test]
fn the_readme_states_the_msrv_and_the_commands() {
    let readme = read("README.md");
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let msrv = manifest["package"]["rust-version"].as_str().unwrap();
    for needed in [msrv, "tests/run --setup", "cargo run --release --example quickstart"] {
        assert!(readme.contains(needed), "README.md does not say {needed}");
    }
    let lines = readme.lines().count();
    assert!(lines <= 150, "README.md has {lines} lines");
}

#[test]
fn decisions_are_written_down() {
    for (path, needed) in [("CHANGELOG.md", "## "), ("src/scheduler/README.md", "lock")] {
        assert!(read(path).contains(needed), "{path} lacks {needed:?}");
    }
}

#[test]
fn both_licences_are_here() {
    for (path, needed) in [("LICENSE-MIT", "MIT License"), ("LICENSE-APACHE", "Version 2.0, January 2004")] {
        assert!(read(path).contains(needed), "{path} lacks {needed:?}");
    }
    assert!(read("Cargo.toml").contains("license = \"MIT OR Apache-2.0\""));
}

#[test]
fn ci_checks_what_it_must() {
    let ci = read(".ci/run");
    let steps = [
        "cargo fmt --check",
        "-- -D warnings",
        "--document-private-items",
        "--no-default-features",
        "cargo package",
        "tests/run --setup",
        "--example quickstart",
    ];
    for step in steps {
        assert!(ci.contains(step), ".ci/run lacks {step}");
    }
    for script in [".ci/run", "tests/run"] {
        let mode = fs::metadata(top().join(script)).unwrap().permissions().mode();
        assert!(mode & 0o111 == 0o111, "{script} cannot be run: mode {mode:o}");
    }
}

#[test]
fn the_top_level_holds_what_it_must_and_no_more() {
    let mut wrong = Vec::new();
    for entry in fs::read_dir(top()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !TOP.contains(&name.as_str()) && !is_build_output(&name) {
            wrong.push(name);
        }
    }
    none(&wrong);
}

#[track_caller]
fn none<T: std::fmt::Debug>(wrong: &[T]) {
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

fn module_of(file: &File) -> &str {
    file.path.trim_start_matches("src/").split(['/', '.']).next().unwrap()
}

fn is_test(file: &File) -> bool {
    file.path.ends_with("/tests.rs") || file.path.contains("/tests/")
}

/// The first names after every `crate::`, those in braces included.
fn used_modules(file: &File) -> Vec<String> {
    let code: String = file.code().map(|(_, line)| format!("{line}\n")).collect();
    let mut found = Vec::new();
    for rest in code.split("crate::").skip(1) {
        if let Some(group) = rest.strip_prefix('{') {
            found.extend(first_names(group));
        } else {
            found.extend(words(rest).next().map(str::to_owned));
        }
    }
    found
}

/// `a::b, c::{d, e}}` gives a and c.
fn first_names(group: &str) -> Vec<String> {
    let mut depth = 0;
    let mut names = vec![String::new()];
    for letter in group.chars() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(String::new()),
            _ if depth == 0 => names.last_mut().unwrap().push(letter),
            _ => {}
        }
    }
    names.iter().filter_map(|name| words(name).next()).map(str::to_owned).collect()
}

fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let mut names = Vec::new();
    for (key, value) in manifest {
        let Some(table) = value.as_table() else { continue };
        if key.ends_with("dependencies") {
            names.extend(table.keys().cloned());
        } else if key == "target" {
            names.extend(table.values().filter_map(toml::Value::as_table).flat_map(dependencies));
        }
    }
    names
}

/// Package and stated version, read without a JSON parser: a package's entry opens with name, version and id in this order.
fn stated_versions(metadata: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in metadata.split("{\"name\":\"").skip(1) {
        let name = entry.split('"').next().unwrap();
        let is_package = entry[name.len()..].starts_with("\",\"version\":\"");
        if is_package {
            found.push((name.to_owned(), None));
        }
        let stated = entry.split("\"rust_version\":\"").nth(1).and_then(|rest| rest.split('"').next());
        if let (Some(stated), Some(package)) = (stated, found.last_mut()) {
            package.1 = Some(stated.to_owned());
        }
    }
    found.into_iter().filter_map(|(name, stated)| Some((name, stated?))).collect()
}

fn release(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap());
    (parts.next().unwrap(), parts.next().unwrap_or(0))
}

fn is_build_output(name: &str) -> bool {
    let ignored = read(".gitignore");
    ignored.lines().any(|line| line.trim_matches('/') == name)
}
