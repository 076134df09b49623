//! The little the ledger asks of a disk, so that a simulated one can take its place.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
};

/// A directory.
pub(super) trait Disk: fmt::Debug + Send + Sync {
    /// Names of its files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// A file to read.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// A file to read and append to, new where there is none.
    fn open_to_append(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Waits until the names are durable.
    fn sync(&self) -> io::Result<()>;
    /// How a file is called in an error.
    fn path(&self, name: &str) -> PathBuf;
}

/// A file.
pub(super) trait DiskFile: fmt::Debug + Send {
    fn len(&self) -> io::Result<u64>;
    /// Fills the buffer from `offset`; fewer bytes than it holds only at the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn cut(&mut self, length: u64) -> io::Result<()>;
    /// Waits until the content is durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// A directory of this machine.
#[derive(Debug)]
pub(super) struct RealDisk {
    directory: PathBuf,
}

impl RealDisk {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }
}

impl Disk for RealDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(&self.directory)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile(File::open(self.path(name))?)))
    }

    fn open_to_append(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().create(true).read(true).append(true).open(self.path(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut file = &self.0;
        file.seek(io::SeekFrom::Start(offset))?;
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}
