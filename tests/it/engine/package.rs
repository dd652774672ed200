//! What `cargo package` would upload stays small, and no program of the tests is forgotten.

use std::path::{Path, PathBuf};

/// The most bytes of all files of the package, before they are compressed.
const MAX_BYTES: u64 = 10 << 20;

/// The files of a folder that belong to the package: not those of folders that `exclude` names, of other packages, or of builds.
fn files(folder: &Path, exclude: &[String], out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let root = Path::new(env!("TENSORLOGIC_ROOT"));
        let at_root = format!("/{}", path.strip_prefix(root).unwrap().display());
        if name.starts_with('.') || at_root == "/target" || exclude.contains(&at_root) || path.is_symlink() {
            continue;
        }
        match path.is_dir() {
            true if path.join("Cargo.toml").exists() => {}
            true => files(&path, exclude, out),
            false => out.push(path),
        }
    }
}

#[test]
fn the_package_stays_below_ten_megabytes() {
    let root = Path::new(env!("TENSORLOGIC_ROOT"));
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let list = manifest.lines().find_map(|l| l.strip_prefix("exclude = [")).expect("Cargo.toml excludes folders");
    let exclude: Vec<String> = list.split('"').skip(1).step_by(2).map(String::from).collect();
    assert!(exclude.contains(&"/tests".into()) && exclude.contains(&"/models".into()), "{exclude:?}");
    let mut all = Vec::new();
    files(root, &exclude, &mut all);
    assert!(all.iter().any(|f| f.ends_with("src/lib.rs")) && !all.iter().any(|f| f.starts_with(root.join("cli"))), "{}", all.len());
    let size = |f: &PathBuf| f.metadata().unwrap().len();
    let bytes: u64 = all.iter().map(size).sum();
    let largest = all.iter().max_by_key(|f| size(f)).unwrap();
    assert!(bytes < MAX_BYTES, "{bytes} bytes in {} files; the largest is {}", all.len(), largest.display());
}

/// Cargo looks for none by itself: their package lies in `tests/`, not above it.
#[test]
fn every_test_program_is_in_the_tests_package() {
    let folder = Path::new(env!("TENSORLOGIC_ROOT")).join("tests");
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let mut programs = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        if path.join("main.rs").exists() {
            programs.push(format!("{name}/main.rs"));
        } else if name.ends_with(".rs") && name != "build.rs" {
            programs.push(name);
        }
    }
    assert!(programs.len() > 20, "{programs:?}");
    let forgotten: Vec<&String> = programs.iter().filter(|p| !manifest.contains(&format!("path = \"{p}\"\n"))).collect();
    assert!(forgotten.is_empty(), "tests/Cargo.toml names no {forgotten:?}");
}
