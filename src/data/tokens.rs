//! Token files, mapped into memory: nanoGPT's and llm.c's `.bin`, and windows of them as examples.

use super::{Dataset, Field, Part};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::MappedFile;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// llm.c's header: 256 numbers of 32 bits, of which three are used: magic, version, number of tokens.
const HEADER: usize = 1024;
/// llm.c's tokens of 16 bits, version 1.
const MAGIC_16: i32 = 20240520;
/// llm.c's tokens of 32 bits, version 7.
const MAGIC_32: i32 = 20240801;

/// Many tokens: a mapped file, or numbers in memory.
pub struct TokenFile {
    data: MappedFile,
    /// Where the tokens begin.
    start: usize,
    /// Whether a token has 4 bytes, not 2.
    wide: bool,
    len: usize,
}

fn bad(path: &Path, message: String) -> TensorError {
    TensorError::format("tokens", format!("{}: {message}", path.display()))
}

impl TokenFile {
    /// Maps a token file: llm.c's (a header of 1,024 bytes with the magic 20240520 for tokens of 16 bits, 20240801 for 32), or nanoGPT's, which is
    /// nothing but little-endian tokens of 16 bits.
    ///
    /// # Errors
    /// If the file cannot be mapped, is shorter than its header says, or has half a token.
    ///
    /// ```
    /// use tensorlogic::data::TokenFile;
    /// let path = std::env::temp_dir().join(format!("tl-doc-tokens-open-{}", std::process::id()));
    /// std::fs::write(&path, [1u8, 0, 255, 2])?; // as nanoGPT writes 1 and 767
    /// let tokens = TokenFile::open(&path)?;
    /// assert_eq!((tokens.len(), tokens.max()), (2, 767));
    /// # drop(tokens);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> TensorResult<TokenFile> {
        let path = path.as_ref();
        let data = MappedFile::open(path)?;
        let word = |n: usize| data.get(4 * n..4 * n + 4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let (start, wide) = match (word(0), word(1)) {
            (Some(MAGIC_16), Some(1)) => (HEADER, false),
            (Some(MAGIC_32), Some(7)) => (HEADER, true),
            (Some(m @ (MAGIC_16 | MAGIC_32)), Some(v)) => {
                return Err(bad(path, format!("unknown version {v} of a file with magic {m}")));
            }
            _ => (0, false),
        };
        let width = if wide { 4 } else { 2 };
        let len = match start {
            0 if data.len() % 2 != 0 => return Err(bad(path, format!("{} bytes are not a multiple of a 16-bit token", data.len()))),
            0 => data.len() / 2,
            _ => {
                let len = word(2).filter(|&n| n >= 0).unwrap_or(-1) as i64;
                if len < 0 || HEADER as i64 + len * width as i64 > data.len() as i64 {
                    return Err(bad(path, format!("the header says {len} tokens, but the file has {} bytes", data.len())));
                }
                len as usize
            }
        };
        Ok(TokenFile { data, start, wide, len })
    }

    /// Tokens in memory.
    pub fn from_tokens(tokens: &[u32]) -> TokenFile {
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        TokenFile { data: MappedFile::from(bytes), start: 0, wide: true, len: tokens.len() }
    }

    /// Writes a file that [`TokenFile::open`] reads, with llm.c's header: tokens of 16 bits where all fit, else of 32. The file appears whole or
    /// not at all.
    ///
    /// # Errors
    /// The system's, and more than 2³¹ tokens.
    ///
    /// ```
    /// use tensorlogic::data::TokenFile;
    /// let path = std::env::temp_dir().join(format!("tl-doc-tokens-write-{}", std::process::id()));
    /// TokenFile::write(&path, &[5, 70_000])?;
    /// assert_eq!(std::fs::metadata(&path)?.len(), 1024 + 2 * 4); // 70,000 needs more than 16 bits
    /// assert_eq!(TokenFile::open(&path)?.max(), 70_000);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(path: impl AsRef<Path>, tokens: &[u32]) -> TensorResult<()> {
        let path = path.as_ref();
        let count = i32::try_from(tokens.len()).map_err(|_| bad(path, format!("{} tokens do not fit one file", tokens.len())))?;
        let wide = tokens.iter().any(|&t| t > u16::MAX as u32);
        crate::io::save::save(path, |out| {
            use std::io::Write;
            let head = if wide { [MAGIC_32, 7, count] } else { [MAGIC_16, 1, count] };
            let mut header = [0u8; HEADER];
            for (at, n) in header.chunks_exact_mut(4).zip(head) {
                at.copy_from_slice(&n.to_le_bytes());
            }
            out.write_all(&header)?;
            for &t in tokens {
                if wide { out.write_all(&t.to_le_bytes())? } else { out.write_all(&(t as u16).to_le_bytes())? }
            }
            Ok(())
        })
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the file has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the tokens from `start` on into `out`.
    ///
    /// # Errors
    /// If there are not that many.
    ///
    /// ```
    /// use tensorlogic::data::TokenFile;
    /// let tokens = TokenFile::from_tokens(&[3, 1, 4, 1, 5]);
    /// let mut out = [0; 3];
    /// tokens.read(2, &mut out)?;
    /// assert_eq!(out, [4, 1, 5]);
    /// assert!(tokens.read(3, &mut out).is_err()); // there are two from there on
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn read(&self, start: usize, out: &mut [i32]) -> TensorResult<()> {
        let width = if self.wide { 4 } else { 2 };
        let end = start.checked_add(out.len()).filter(|&e| e <= self.len);
        let Some(end) = end else {
            return Err(TensorError::Value(format!("{} tokens from {start} of {}", out.len(), self.len)));
        };
        let bytes = &self.data[self.start + start * width..self.start + end * width];
        if self.wide {
            out.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(o, b)| *o = i32::from_le_bytes(*b));
        } else {
            out.iter_mut().zip(bytes.as_chunks::<2>().0).for_each(|(o, b)| *o = u16::from_le_bytes(*b) as i32);
        }
        Ok(())
    }

    /// The largest token.
    pub fn max(&self) -> u32 {
        let bytes = &self.data[self.start..];
        let wide = || bytes.as_chunks::<4>().0[..self.len].iter().map(|b| u32::from_le_bytes(*b)).max();
        let narrow = || bytes.as_chunks::<2>().0[..self.len].iter().map(|b| u16::from_le_bytes(*b) as u32).max();
        if self.wide { wide() } else { narrow() }.unwrap_or(0)
    }
}

/// Windows of a part of a token file as examples: `[context]` tokens and, one further, `[context]` targets, both i32.
pub struct TokenWindows {
    tokens: Arc<TokenFile>,
    range: Range<usize>,
    context: usize,
    stride: usize,
}

impl TokenWindows {
    /// Windows of `context` tokens inside `range`, each `stride` tokens after the previous one. A stride of 1 gives all windows, for a
    /// random order; a stride of `context` gives windows that do not overlap.
    ///
    /// # Errors
    /// If the range does not hold one window and the token after it.
    ///
    /// ```
    /// use tensorlogic::data::{Dataset, Part, TokenFile, TokenWindows};
    /// let tokens = TokenFile::from_tokens(&[0, 1, 2, 3, 4, 5, 6]);
    /// let windows = TokenWindows::new(tokens.into(), 0..7, 3, 3)?;
    /// assert_eq!(windows.len(), 2);
    /// let (mut inputs, mut targets) = ([0; 3], [0; 3]);
    /// windows.read(1, &mut [Part::I32(&mut inputs), Part::I32(&mut targets)])?;
    /// assert_eq!((inputs, targets), ([3, 4, 5], [4, 5, 6]));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn new(tokens: Arc<TokenFile>, range: Range<usize>, context: usize, stride: usize) -> TensorResult<TokenWindows> {
        let count = range.end.min(tokens.len()).saturating_sub(range.start);
        if context == 0 || stride == 0 || count <= context || range.end > tokens.len() {
            let m = format!("windows of {context} tokens need more than {context}; there are {count}");
            return Err(TensorError::Value(m));
        }
        Ok(TokenWindows { tokens, range, context, stride })
    }
}

impl Dataset for TokenWindows {
    fn len(&self) -> usize {
        (self.range.len() - self.context - 1) / self.stride + 1
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field { dtype: DType::I32, shape: vec![self.context] }; 2]
    }
    fn read(&self, index: usize, parts: &mut [Part]) -> TensorResult<()> {
        let [Part::I32(inputs), Part::I32(targets)] = parts else {
            return Err(TensorError::Value("windows of tokens have inputs and targets".into()));
        };
        let start = self.range.start + index * self.stride;
        self.tokens.read(start, inputs)?;
        self.tokens.read(start + 1, targets)
    }
}
