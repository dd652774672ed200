//! A roofline plot as SVG: operations per second over operations per byte, under what the machine allows.

use super::{Record, table};
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 600.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 60.0;
/// Operations per byte at the left edge; what computes nothing stands there.
const MIN_INTENSITY: f64 = 1.0 / 64.0;
const COLORS: [&str; 8] = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf"];

/// Text as SVG takes it.
pub(super) fn escape(s: &str) -> String {
    s.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Where an operation stands: operations per byte and GFLOP/s. One that only moves bytes stands at the left edge, at the height that its
/// bandwidth has there.
fn point(r: &Record) -> Option<(f64, f64)> {
    let bandwidth = r.gigabytes()?;
    let intensity = (r.operations as f64 / r.bytes as f64).max(MIN_INTENSITY);
    Some((intensity, bandwidth * intensity))
}

/// The plot of all records. `bandwidth` in GB/s and `compute` in GFLOP/s are the machine's measured limits.
pub fn svg(records: &[Record], bandwidth: f64, compute: f64) -> String {
    let points: Vec<(&Record, (f64, f64))> = records.iter().filter_map(|r| Some((r, point(r)?))).collect();
    let xs = points.iter().map(|p| p.1.0).chain([compute / bandwidth * 2.0]);
    let (x0, x1) = (MIN_INTENSITY, 2f64.powf(xs.fold(1.0, f64::max).log2().ceil()));
    let ys = points.iter().map(|p| p.1.1);
    let y1 = 10f64.powf(ys.clone().chain([compute]).fold(1e-9, f64::max).log10().ceil());
    let y0 = 10f64.powf(ys.chain([bandwidth * MIN_INTENSITY]).filter(|y| *y > 0.0).fold(y1, f64::min).log10().floor());
    let x = |v: f64| LEFT + (v / x0).ln() / (x1 / x0).ln() * (WIDTH - LEFT - RIGHT);
    let y = |v: f64| HEIGHT - BOTTOM - (v.max(y0) / y0).ln() / (y1 / y0).ln() * (HEIGHT - TOP - BOTTOM);
    let mut s = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let text = |s: &mut String, at: (f64, f64), anchor: &str, t: &str| {
        let _ = writeln!(s, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>", at.0, at.1, escape(t));
    };
    let title = records.first().map(|r| r.environment.line()).unwrap_or_default();
    text(&mut s, (LEFT, 24.0), "start", &title);
    text(&mut s, ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 16.0), "middle", "operations per byte");
    text(&mut s, (LEFT, TOP - 12.0), "middle", "GFLOP/s");
    let mut v = y0;
    while v <= y1 * 1.001 {
        let _ = writeln!(s, "<path d=\"M{LEFT} {0:.1}H{1:.1}\" stroke=\"#ddd\"/>", y(v), WIDTH - RIGHT);
        text(&mut s, (LEFT - 6.0, y(v) + 4.0), "end", &format!("{v}"));
        v *= 10.0;
    }
    let mut v = x0;
    while v <= x1 * 1.001 {
        let _ = writeln!(s, "<path d=\"M{0:.1} {TOP}V{1:.1}\" stroke=\"#eee\"/>", x(v), HEIGHT - BOTTOM);
        let label = if v >= 1.0 { format!("{v}") } else { format!("1/{}", 1.0 / v) };
        text(&mut s, (x(v), HEIGHT - BOTTOM + 16.0), "middle", &label);
        v *= 2.0;
    }
    let knee = compute / bandwidth;
    let _ = writeln!(
        s,
        "<path class=\"roof\" d=\"M{:.1} {:.1}L{:.1} {:.1}H{:.1}\" fill=\"none\" stroke=\"black\" stroke-width=\"2\"/>",
        x(x0),
        y(bandwidth * x0),
        x(knee.max(x0)),
        y(compute),
        x(x1)
    );
    text(&mut s, (x(x0) + 6.0, y(bandwidth * x0) - 10.0), "start", &format!("{bandwidth:.1} GB/s"));
    text(&mut s, (x(x1) - 4.0, y(compute) - 6.0), "end", &format!("{compute:.1} GFLOP/s"));
    let mut names: Vec<&str> = Vec::new();
    for (r, (px, py)) in &points {
        let c = names.iter().position(|n| *n == r.category).unwrap_or_else(|| {
            names.push(&r.category);
            names.len() - 1
        });
        let reached = r.fraction().map_or(String::new(), |f| format!(", {:.0} % of the limit", f * 100.0));
        let tip = format!("{} {}: {py:.3} GFLOP/s, {:.2} GB/s{reached}", r.operation, r.size, r.gigabytes().unwrap_or(0.0));
        let _ = writeln!(
            s,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{}\"><title>{}</title></circle>",
            x(*px),
            y(*py),
            COLORS[c % COLORS.len()],
            escape(&tip)
        );
        let _ = writeln!(
            s,
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"7\" fill=\"#555\">{}</text>",
            x(*px) + 6.0,
            y(*py) + 2.0,
            escape(&format!("{} {}", r.operation, r.size))
        );
    }
    for (n, name) in names.iter().enumerate() {
        let at = TOP + 18.0 * n as f64;
        let _ = writeln!(s, "<circle cx=\"{}\" cy=\"{at}\" r=\"4\" fill=\"{}\"/>", WIDTH - RIGHT + 24.0, COLORS[n % COLORS.len()]);
        text(&mut s, (WIDTH - RIGHT + 36.0, at + 4.0), "start", name);
    }
    s.push_str("</svg>\n");
    s
}

/// A page with the plot and the tables.
pub fn html(records: &[Record], bandwidth: f64, compute: f64) -> String {
    let title = records.first().map(|r| r.environment.line()).unwrap_or_default();
    format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>{0}</title>\n<h1 style=\"font:16px sans-serif\">{0}</h1>\n{1}\n<pre>{2}</pre>\n",
        escape(&title),
        svg(records, bandwidth, compute),
        escape(&table(records))
    )
}
