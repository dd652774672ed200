//! Training data: text files are converted to a tokenizer and a token file in the run's folder; token files are used directly.

use super::settings::{Recipe, Settings};
use crate::output::Failure;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensorlogic::data::TokenFile;
use tensorlogic::io::save::save;
use tensorlogic::text::{Tokenizer, learn};

/// Training tokens and held-out tokens.
pub struct Corpus {
    pub tokenizer: Tokenizer,
    /// The file's bytes, which go into every checkpoint.
    pub tokenizer_json: Vec<u8>,
    pub train: (Arc<TokenFile>, Range<usize>),
    pub val: Option<(Arc<TokenFile>, Range<usize>)>,
}

const TOKENS: &str = "tokens.bin";
const HELD_OUT: &str = "held-out.bin";
const TOKENIZER: &str = "tokenizer.json";

fn failed(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::Error(format!("{}: {why}", path.display()))
}

fn is_tokens(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "bin")
}

impl Corpus {
    /// Reads the files and prepares the run's folder.
    pub fn prepare(settings: &Settings, recipe: &Recipe, folder: &Path) -> Result<Corpus, Failure> {
        if settings.files.is_empty() {
            return Err(Failure::Usage("no training text: give a file or a folder (see tl train --help)".into()));
        }
        let binary = settings.files.iter().any(|f| is_tokens(f));
        if binary && settings.files.len() > 1 {
            return Err(Failure::Usage("a .bin token file cannot be combined with other inputs".into()));
        }
        let texts = if binary { Vec::new() } else { read_texts(&settings.files)? };
        let held_out = match &settings.val_file {
            Some(f) if !is_tokens(f) => Some(read_texts(std::slice::from_ref(f))?),
            _ => None,
        };
        let all = || texts.iter().chain(held_out.iter().flatten()).map(String::as_str);
        let json = match recipe.tokenizer.split_once(':') {
            None if recipe.tokenizer == "char" && !binary => learn::characters(all())?,
            Some(("bpe", size)) if !binary => {
                let size = size.parse().map_err(|_| Failure::Usage(format!("--tokenizer bpe:{size}: expected a number of tokens")))?;
                learn::byte_pairs(texts.iter().map(String::as_str), size)?
            }
            _ if matches!(recipe.tokenizer.as_str(), "char") || recipe.tokenizer.starts_with("bpe:") => {
                return Err(Failure::Usage("a .bin token file needs --tokenizer FILE, the tokenizer.json it was made with".into()));
            }
            _ => {
                let path = Path::new(&recipe.tokenizer);
                std::fs::read(path).map_err(|e| failed(path, e))?
            }
        };
        let tokenizer = Tokenizer::from_json(&json)?;
        if !binary {
            TokenFile::write(folder.join(TOKENS), &encode(&tokenizer, &texts)?)?;
        }
        if let Some(texts) = &held_out {
            TokenFile::write(folder.join(HELD_OUT), &encode(&tokenizer, texts)?)?;
        }
        save(folder.join(TOKENIZER), |out| std::io::Write::write_all(out, &json))?;
        Corpus::open(settings, recipe, folder)
    }

    /// Opens what [`Corpus::prepare`] left in the folder.
    pub fn open(settings: &Settings, recipe: &Recipe, folder: &Path) -> Result<Corpus, Failure> {
        let path = folder.join(TOKENIZER);
        let tokenizer_json = std::fs::read(&path).map_err(|e| failed(&path, e))?;
        let tokenizer = Tokenizer::from_json(&tokenizer_json)?;
        let open = |given: Option<&PathBuf>, own: &str| -> Result<Arc<TokenFile>, Failure> {
            let path = given.filter(|f| is_tokens(f)).cloned().unwrap_or_else(|| folder.join(own));
            let tokens = TokenFile::open(&path)?;
            if !tokens.is_empty() && tokens.max() as usize >= tokenizer.vocab_size() {
                let m = format!("has token {}; the tokenizer has {} tokens", tokens.max(), tokenizer.vocab_size());
                return Err(failed(&path, m));
            }
            Ok(Arc::new(tokens))
        };
        let tokens = open(settings.files.first(), TOKENS)?;
        let split = (tokens.len() as f64 * (1.0 - recipe.val)) as usize;
        let val = match &settings.val_file {
            Some(f) => {
                let t = open(Some(f), HELD_OUT)?;
                let all = 0..t.len();
                Some((t, all))
            }
            None => (recipe.val > 0.0).then(|| (tokens.clone(), split..tokens.len())),
        };
        for (what, n) in [("training text", split), ("held-out text", val.as_ref().map_or(usize::MAX, |v| v.1.len()))] {
            if n <= recipe.model.context {
                let m = format!("the {what} has {n} tokens; a context of {} needs more (--context, --val)", recipe.model.context);
                return Err(Failure::Error(m));
            }
        }
        Ok(Corpus { tokenizer, tokenizer_json, train: (tokens, 0..split), val })
    }
}

/// The tokens of all texts; a token that ends a text stands between them where the tokenizer has one.
fn encode(tokenizer: &Tokenizer, texts: &[String]) -> Result<Vec<u32>, Failure> {
    let end = tokenizer.id(learn::END_OF_TEXT);
    let mut out = Vec::new();
    for (n, text) in texts.iter().enumerate() {
        if n > 0 {
            out.extend(end);
        }
        for piece in learn::pieces(text, 1 << 20) {
            // What looks like a special token in a text is letters.
            out.extend(tokenizer.encode_with(piece, false, false)?);
        }
    }
    Ok(out)
}

/// The texts of files and of the `.txt`, `.text` and `.md` files in folders, in the order of their paths.
fn read_texts(paths: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let mut files = Vec::new();
    for p in paths {
        let meta = std::fs::metadata(p).map_err(|e| failed(p, e))?;
        if meta.is_dir() {
            let before = files.len();
            collect(p, &mut files)?;
            if files.len() == before {
                return Err(failed(p, "has no .txt, .text or .md files"));
            }
        } else {
            files.push(p.clone());
        }
    }
    files.iter().map(|f| std::fs::read_to_string(f).map_err(|e| failed(f, e))).collect()
}

fn collect(folder: &Path, out: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let entries = std::fs::read_dir(folder).map_err(|e| failed(folder, e))?;
    let mut paths = entries.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>().map_err(|e| failed(folder, e))?;
    paths.sort();
    for p in paths {
        let hidden = p.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
        if p.is_dir() && !hidden && !p.is_symlink() {
            collect(&p, out)?;
        } else if p.is_file() && p.extension().is_some_and(|e| e == "txt" || e == "text" || e == "md") {
            out.push(p);
        }
    }
    Ok(())
}
