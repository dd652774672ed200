//! Reads one member of a wheel (a zip archive): stored or deflated, streamed, every offset checked.

use flate2::read::DeflateDecoder;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

const END: u32 = 0x0605_4b50;
const ENTRY: u32 = 0x0201_4b50;
const LOCAL: u32 = 0x0403_4b50;
/// The end record and the longest comment that may follow it.
const TAIL: u64 = 22 + 65_535;

/// Opens the member for reading; gives its size as well.
pub fn open(wheel: &Path, member: &str) -> io::Result<(Box<dyn Read>, u64)> {
    let mut file = File::open(wheel)?;
    let length = file.seek(SeekFrom::End(0))?;
    let tail = read_at(&mut file, length.saturating_sub(TAIL), length.min(TAIL))?;
    let end = (0..tail.len().saturating_sub(21)).rev().find(|&at| u32_at(&tail, at) == Some(END)).ok_or_else(|| bad("no end record"))?;
    let size = u32_at(&tail, end + 12).map(u64::from).ok_or_else(|| bad("short end record"))?;
    let start = u32_at(&tail, end + 16).map(u64::from).ok_or_else(|| bad("short end record"))?;
    if start + size > length {
        return Err(bad("the directory is outside the file"));
    }
    let directory = read_at(&mut file, start, size)?;

    let mut at = 0;
    while u32_at(&directory, at) == Some(ENTRY) {
        let field = |offset| u16_at(&directory, at + offset).map(usize::from).ok_or_else(|| bad("short directory"));
        let wide = |offset| u32_at(&directory, at + offset).map(u64::from).ok_or_else(|| bad("short directory"));
        let name_end = at + 46 + field(28)?;
        let name = directory.get(at + 46..name_end).ok_or_else(|| bad("short directory"))?;
        if name == member.as_bytes() {
            let (method, packed, unpacked, header) = (field(10)?, wide(20)?, wide(24)?, wide(42)?);
            let local = read_at(&mut file, header, 30)?;
            let (Some(LOCAL), Some(name), Some(extra)) = (u32_at(&local, 0), u16_at(&local, 26), u16_at(&local, 28)) else {
                return Err(bad("the directory does not point to a header"));
            };
            let data = header + 30 + u64::from(name) + u64::from(extra);
            if data + packed > length {
                return Err(bad("a member is outside the file"));
            }
            file.seek(SeekFrom::Start(data))?;
            let packed = BufReader::with_capacity(1 << 18, file.take(packed));
            return match method {
                0 => Ok((Box::new(packed), unpacked)),
                8 => Ok((Box::new(DeflateDecoder::new(packed).take(unpacked)), unpacked)),
                other => Err(bad(&format!("unknown compression method {other}"))),
            };
        }
        at = name_end + field(30)? + field(32)?;
    }
    Err(bad(&format!("no member {member}")))
}

fn read_at(file: &mut File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::new();
    // Bounded by what the file holds, whatever `length` claims.
    file.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length { Ok(bytes) } else { Err(bad("the file is truncated")) }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a usable wheel: {what}"))
}
