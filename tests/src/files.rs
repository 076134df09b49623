//! Files of a run, and files that stand for a user's mistakes.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Every file below a directory, in name order.
pub fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry can be read").path()).collect();
    paths.sort();
    paths.into_iter().flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] }).collect()
}

/// Files that are written beside their place first, and were left there.
pub fn half_written(directory: &Path) -> Vec<PathBuf> {
    let beside = |path: &PathBuf| path.extension().is_some_and(|end| end == "partial" || end == "tmp");
    below(directory).into_iter().filter(beside).collect()
}

/// Copies the files of a directory into a new one.
pub fn copy(from: &Path, to: &Path) -> PathBuf {
    fs::create_dir_all(to).expect("a temporary directory can be written");
    for path in below(from) {
        let name = path.file_name().expect("a file has a name");
        fs::copy(&path, to.join(name)).expect("a temporary directory can be written");
    }
    to.to_owned()
}

/// Writes a file, and gives its path.
pub fn write(path: PathBuf, content: impl AsRef<[u8]>) -> PathBuf {
    fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    path
}
