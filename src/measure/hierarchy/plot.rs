//! Latency and bandwidth over the working set as SVG.

use super::{Hierarchy, WorkingSet, size_of_set};
use crate::measure::plot::escape;
use std::fmt::Write;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 60.0;
/// Height of each of the two panels, and the distance between them.
const PANEL: f64 = 220.0;
const GAP: f64 = 50.0;
const HEIGHT: f64 = TOP + 2.0 * PANEL + 2.0 * GAP;

/// A curve: its name, its color and a height for each working set.
type Curve = (&'static str, &'static str, Vec<f64>);

fn text(s: &mut String, at: (f64, f64), anchor: &str, t: &str) {
    let _ = writeln!(s, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>", at.0, at.1, escape(t));
}

/// Curves over the same places, by decades from the bottom up.
fn panel(s: &mut String, top: f64, title: &str, x: &[f64], curves: &[Curve]) {
    let values = || curves.iter().flat_map(|c| c.2.iter().copied()).filter(|v| *v > 0.0);
    let low = 10f64.powf(values().fold(f64::INFINITY, f64::min).log10().floor());
    let high = 10f64.powf(values().fold(0.0, f64::max).log10().ceil()).max(10.0 * low);
    let y = |v: f64| top + PANEL * (1.0 - (v.max(low) / low).ln() / (high / low).ln());
    text(s, (LEFT, top - 10.0), "start", title);
    let mut v = low;
    while v <= high * 1.001 {
        let _ = writeln!(s, "<path d=\"M{LEFT} {0:.1}H{1:.1}\" stroke=\"#ddd\"/>", y(v), WIDTH - RIGHT);
        text(s, (LEFT - 6.0, y(v) + 4.0), "end", &format!("{v}"));
        v *= 10.0;
    }
    for (n, (name, color, values)) in curves.iter().enumerate() {
        let points: Vec<String> = x.iter().zip(values).map(|(x, v)| format!("{x:.1},{:.1}", y(*v))).collect();
        let _ = writeln!(s, "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>", points.join(" "));
        text(s, (WIDTH - RIGHT + 12.0, top + 16.0 * (n + 1) as f64), "start", name);
        let _ = writeln!(
            s,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{color}\"/>",
            WIDTH - RIGHT + 6.0,
            top + 16.0 * (n + 1) as f64 - 4.0
        );
    }
}

/// Two panels, the working sets below, and a line for each size of a level.
pub(super) fn svg(h: &Hierarchy) -> String {
    let mut s = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    text(&mut s, (LEFT, 24.0), "start", &h.device);
    let (Some(first), Some(last)) = (h.points.first(), h.points.last()) else { return s + "</svg>\n" };
    let span = (last.bytes as f64 / first.bytes as f64).log2().max(1.0);
    let x = |bytes: u64| LEFT + (bytes as f64 / first.bytes as f64).log2() / span * (WIDTH - LEFT - RIGHT);
    let xs: Vec<f64> = h.points.iter().map(|p| x(p.bytes)).collect();
    let all = |f: fn(&WorkingSet) -> f64| h.points.iter().map(f).collect::<Vec<f64>>();
    panel(&mut s, TOP, "ns of a dependent read", &xs, &[("latency", "#d62728", all(|p| p.latency * 1e9))]);
    let rates = [("read", "#1f77b4", all(|p| p.read * 1e-9)), ("copy", "#2ca02c", all(|p| p.copy * 1e-9))];
    panel(&mut s, TOP + PANEL + GAP, "GB/s", &xs, &rates);
    let bottom = TOP + 2.0 * PANEL + GAP;
    let mut bytes = first.bytes.next_power_of_two();
    while bytes <= last.bytes {
        text(&mut s, (x(bytes), bottom + 16.0), "middle", &size_of_set(bytes));
        bytes *= 4;
    }
    text(&mut s, ((LEFT + WIDTH - RIGHT) / 2.0, bottom + 36.0), "middle", "working set");
    let measured = h.levels.iter().filter_map(|l| Some(("level", "6 4", l.size?)));
    let told = h.system.iter().map(|c| ("told", "1 4", c.size)).filter(|c| c.2 >= first.bytes && c.2 <= last.bytes);
    for (class, dash, size) in measured.chain(told) {
        let at = x(size);
        let _ = writeln!(s, "<path class=\"{class}\" d=\"M{at:.1} {TOP}V{bottom:.1}\" stroke=\"black\" stroke-dasharray=\"{dash}\"/>");
    }
    s.push_str("</svg>\n");
    s
}
