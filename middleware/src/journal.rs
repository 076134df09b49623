//! The files of a run: appended whole lines, or written whole. A write that fails leaves what was there.

use serde::Serialize;
use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", path.display())]
pub struct WriteError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl WriteError {
    /// What happened to which file.
    pub fn new(path: &Path, source: io::Error) -> Self {
        Self { path: path.to_owned(), source }
    }
}

/// A JSONL file, one line a record.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Journal {
    /// Creates the file, which must not be there yet.
    ///
    /// # Errors
    /// A file that is there, a directory that cannot be written.
    pub fn create(path: PathBuf) -> Result<Self, WriteError> {
        let file = File::create_new(&path).map_err(|source| WriteError::new(&path, source))?;
        Ok(Self { path, file, length: 0 })
    }

    /// Opens the file again after its first `keep` lines, and cuts what is behind them; creates it where there is none. Gives the
    /// lines that are kept, which may be fewer.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub fn resume(path: PathBuf, keep: usize) -> Result<(Self, Vec<String>), WriteError> {
        let mut lines = 0..keep;
        Self::resume_while(path, |_| lines.next().is_some())
    }

    /// [`Journal::resume`] after the last line before one that is not to be kept.
    ///
    /// # Errors
    /// As there.
    pub fn resume_while(path: PathBuf, mut keep: impl FnMut(&str) -> bool) -> Result<(Self, Vec<String>), WriteError> {
        let failed = |source| WriteError::new(&path, source);
        let open = File::options().create(true).read(true).append(true).truncate(false).open(&path);
        let mut file = open.map_err(failed)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        let kept: Vec<&str> =
            text.split_inclusive('\n').take_while(|line| line.ends_with('\n') && keep(line)).collect();
        let length = kept.iter().map(|line| line.len() as u64).sum();
        file.set_len(length).map_err(failed)?;
        let kept = kept.into_iter().map(str::to_owned).collect();
        Ok((Self { path, file, length }, kept))
    }

    /// Appends one record as one line.
    ///
    /// # Errors
    /// A disk that is full or broken; the half-written line is taken back.
    pub fn append(&mut self, record: &impl Serialize) -> Result<(), WriteError> {
        let line = serde_json::to_string(record).map_err(io::Error::from).map(|line| line + "\n");
        let written = line.and_then(|line| self.file.write_all(line.as_bytes()).map(|()| line.len() as u64));
        match written {
            Ok(bytes) => {
                self.length += bytes;
                Ok(())
            }
            Err(source) => {
                let taken_back = self.file.set_len(self.length);
                taken_back.map_err(|source| WriteError::new(&self.path, source))?;
                Err(WriteError::new(&self.path, source))
            }
        }
    }
}

/// The place of a file behind any link, and whether the file can appear there whole: a pipe or a device is written into.
pub(crate) fn target(path: &Path) -> (PathBuf, bool) {
    let place = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let other = std::fs::metadata(&place).is_ok_and(|found| !found.is_file() && !found.is_dir());
    (place, !other)
}

/// Writes a whole file: beside its place first, then into it. A link stays one, and a pipe or a device is written into.
///
/// # Errors
/// A disk that is full or broken; nothing is left behind.
pub fn write_whole(path: &Path, content: &str) -> Result<(), WriteError> {
    let (place, whole) = target(path);
    let beside = place.with_extension("partial");
    let write = || {
        if !whole {
            return std::fs::write(&place, content);
        }
        let mut file = File::create(&beside)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, &place)
    };
    write().map_err(|source| {
        let _ = std::fs::remove_file(&beside);
        WriteError::new(path, source)
    })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_link_stays_one_and_a_whole_file_replaces_what_it_points_at() {
        let directory = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| directory.path().join(name));
        std::fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        write_whole(&link, "after").unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "after");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "nothing half-written is left");
        assert_eq!(target(Path::new("/dev/null")), (PathBuf::from("/dev/null"), false));
    }
}
