//! `tl entropy FILE`: how random the bytes of a file are, place by place, and the patches that a byte-level model would make of them.

use crate::output::{self, Failure};
use crate::{Global, interrupt, model};
use clap::Args;
use serde_json::json;
use std::fmt::Write;
use std::io::Read;
use std::path::PathBuf;
use std::time::Instant;
use tensorlogic::ops::byte_entropy::{MAX_WINDOW, PatchRule};
use tensorlogic::{Device, Tensor};

/// Positions that are computed together.
const CHUNK_POSITIONS: usize = 8 << 20;
/// Positions of a cell of the plot, before cells are joined.
const CELL: usize = 256;
/// The threshold where no rule is given.
const THRESHOLD: f32 = 0.65;

/// Measure the entropy of a file's bytes in a window around each: 0 for equal bytes, 1 for random ones
#[derive(Args)]
#[command(after_help = "The entropy of a window is -Σ p·log2(p) / 8, where p is the share of each byte value in it. A patch begins at the
first byte, where the entropy is above --threshold, and where it rises by more than --rise from one byte to the next.

Examples:
  tl entropy book.txt
  tl entropy firmware.bin --window 1024 --plot firmware.svg
  tl entropy book.txt --rise 0.002 --borders | head
  cat a b | tl entropy - --json")]
pub struct EntropyArgs {
    /// File, or - for stdin
    file: PathBuf,
    /// Bytes of a window, half of them before its position
    #[arg(short, long, default_value_t = 256)]
    window: usize,
    /// Begin a patch at each byte whose entropy is above this [default: 0.65 unless --rise is given]
    #[arg(short, long)]
    threshold: Option<f32>,
    /// Begin a patch at each byte whose entropy is above that of the byte before by more than this
    #[arg(short, long)]
    rise: Option<f32>,
    /// Print where each patch begins, and the entropy there, instead of the summary
    #[arg(short, long)]
    borders: bool,
    /// Write a plot of the entropy along the file: FILE.svg
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Device: auto, cpu, gpu, vulkan, metal or dx12; the last four accept an index, such as vulkan:1
    #[arg(long, env = "TL_DEVICE", default_value = "auto")]
    device: String,
}

/// What is known of a stretch of positions.
#[derive(Clone, Copy)]
struct Stretch {
    count: usize,
    sum: f64,
    min: f32,
    max: f32,
}

impl Stretch {
    const NONE: Stretch = Stretch { count: 0, sum: 0.0, min: f32::INFINITY, max: f32::NEG_INFINITY };

    fn of(values: &[f32]) -> Stretch {
        let one = |&h: &f32| Stretch { count: 1, sum: h.into(), min: h, max: h };
        values.iter().map(one).fold(Stretch::NONE, Stretch::with)
    }
    fn with(self, o: Stretch) -> Stretch {
        Stretch { count: self.count + o.count, sum: self.sum + o.sum, min: self.min.min(o.min), max: self.max.max(o.max) }
    }
    fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }
}

/// What was found in a file.
struct FileEntropy {
    cells: Vec<Stretch>,
    patches: usize,
}

impl EntropyArgs {
    fn rule(&self) -> PatchRule {
        let threshold = if self.rise.is_none() { self.threshold.or(Some(THRESHOLD)) } else { self.threshold };
        PatchRule { threshold, rise: self.rise }
    }

    /// Reads the file piece by piece, each with the bytes around it that are in its windows.
    fn measure(&self, device: &Device, mut border: impl FnMut(usize, f32) -> Result<(), Failure>) -> Result<FileEntropy, Failure> {
        let failed = |e: std::io::Error| Failure::Error(format!("{}: {e}", self.file.display()));
        let mut file: Box<dyn Read> = if self.file.as_os_str() == "-" {
            Box::new(std::io::stdin())
        } else {
            Box::new(std::fs::File::open(&self.file).map_err(failed)?)
        };
        let mut found = FileEntropy { cells: vec![], patches: 0 };
        let (mut held, mut start, mut at, mut before) = (Vec::new(), 0, 0, None);
        loop {
            if interrupt::requested() {
                return Err(Failure::Interrupted);
            }
            let wanted = at + CHUNK_POSITIONS + self.window - start;
            let more = wanted.saturating_sub(held.len());
            let read = file.by_ref().take(more as u64).read_to_end(&mut held).map_err(failed)?;
            let end = if read < more { start + held.len() } else { at + CHUNK_POSITIONS };
            if at == end {
                return Ok(found);
            }
            let entropy = Tensor::from_vec(held.clone(), &[held.len()], device)?.byte_entropy(self.window)?;
            let entropy = entropy.narrow(0, at - start, end - at)?.to_vec()?;
            found.cells.extend(entropy.chunks(CELL).map(Stretch::of));
            for i in self.rule().starts(&entropy, before) {
                found.patches += 1;
                border(at + i, entropy[i])?;
            }
            before = entropy.last().copied();
            at = end;
            // What the next windows reach back to.
            let keep = at.saturating_sub(self.window);
            held.drain(..keep.saturating_sub(start));
            start = start.max(keep);
        }
    }
}

/// Runs the subcommand.
pub fn run(args: &EntropyArgs, global: Global) -> Result<(), Failure> {
    if !(1..=MAX_WINDOW).contains(&args.window) {
        return Err(Failure::Usage(format!("--window {}: expected 1 to {MAX_WINDOW} bytes", args.window)));
    }
    let device = model::open_device(&args.device)?;
    interrupt::install();
    let begun = Instant::now();
    let list = args.borders && !global.json;
    let mut borders = Vec::new();
    let found = args.measure(&device, |at, entropy| {
        if list {
            return output::result(&format!("{at}\t{entropy:.4}"));
        }
        if args.borders {
            borders.push(at);
        }
        Ok(())
    })?;
    let all = found.cells.iter().copied().fold(Stretch::NONE, Stretch::with);
    if all.count == 0 {
        return Err(Failure::Error(format!("{}: the file is empty", args.file.display())));
    }
    let seconds = begun.elapsed().as_secs_f64();
    if let Some(path) = &args.plot {
        let title = format!("{}: entropy in windows of {} bytes", args.file.display(), args.window);
        std::fs::write(path, svg(&title, &found.cells, args.rule().threshold))
            .map_err(|e| Failure::Error(format!("{}: {e}", path.display())))?;
    }
    let mean_patch = all.count as f64 / found.patches as f64;
    if global.json {
        let rule = args.rule();
        let mut value = json!({ "file": args.file, "bytes": all.count, "window": args.window, "mean": all.mean(), "min": all.min,
            "max": all.max, "threshold": rule.threshold, "rise": rule.rise, "patches": found.patches, "mean_patch": mean_patch,
            "seconds": seconds, "device": device.name() });
        if args.borders {
            value["borders"] = json!(borders);
        }
        return output::result(&value.to_string());
    }
    if !list {
        output::result(&format!("entropy {:.4} mean, {:.4} min, {:.4} max (1 is 8 bits a byte)", all.mean(), all.min, all.max))?;
        output::result(&format!("{} patches of {mean_patch:.1} bytes on average", found.patches))?;
    }
    if !global.quiet {
        let rate = all.count as f64 / seconds / 1e6;
        output::note(&format!("{} bytes in windows of {}, {rate:.1} MB/s on {}", all.count, args.window, device.name()));
    }
    Ok(())
}

/// A plot of the mean along the file over a band from the least to the largest entropy, with a line at the threshold.
fn svg(title: &str, cells: &[Stretch], threshold: Option<f32>) -> String {
    const WIDTH: f64 = 960.0;
    const HEIGHT: f64 = 320.0;
    const LEFT: f64 = 56.0;
    const RIGHT: f64 = 16.0;
    const TOP: f64 = 40.0;
    const BOTTOM: f64 = 40.0;
    const COLUMNS: usize = 800;
    let columns: Vec<Stretch> =
        cells.chunks(cells.len().div_ceil(COLUMNS)).map(|c| c.iter().copied().fold(Stretch::NONE, Stretch::with)).collect();
    let bytes: usize = cells.iter().map(|c| c.count).sum();
    let x = |byte: f64| LEFT + byte / bytes as f64 * (WIDTH - LEFT - RIGHT);
    let y = |h: f64| TOP + (1.0 - h) * (HEIGHT - TOP - BOTTOM);
    let (mut low, mut high, mut mean, mut at) = (String::new(), String::new(), String::new(), 0.0);
    for c in &columns {
        let middle = x(at + c.count as f64 / 2.0);
        let _ = write!(high, " {middle:.1},{:.1}", y(c.max.into()));
        low.insert_str(0, &format!(" {middle:.1},{:.1}", y(c.min.into())));
        let _ = write!(mean, " {middle:.1},{:.1}", y(c.mean()));
        at += c.count as f64;
    }
    let escaped = title.replace('&', "&amp;").replace('<', "&lt;");
    let mut s = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"24\">{escaped}</text>\n"
    );
    for tenth in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let (at, end) = (y(tenth), WIDTH - RIGHT);
        let _ = writeln!(s, "<path d=\"M{LEFT} {at:.1}H{end}\" stroke=\"#ddd\"/>");
        let _ = writeln!(s, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tenth}</text>", LEFT - 6.0, at + 4.0);
    }
    for part in 0..=4 {
        let byte = (bytes * part / 4) as f64;
        let anchor = ["start", "middle", "middle", "middle", "end"][part];
        let _ = writeln!(s, "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{byte}</text>", x(byte), HEIGHT - BOTTOM + 18.0);
    }
    let _ = writeln!(s, "<polygon class=\"range\" points=\"{}\" fill=\"#c6dbef\"/>", (high + &low).trim_start());
    let _ = writeln!(s, "<polyline class=\"mean\" points=\"{}\" fill=\"none\" stroke=\"#1f77b4\"/>", mean.trim_start());
    if let Some(t) = threshold {
        let _ = writeln!(s, "<path class=\"threshold\" d=\"M{LEFT} {:.1}H{}\" stroke=\"#d62728\"/>", y(t.into()), WIDTH - RIGHT);
    }
    s + "</svg>\n"
}
