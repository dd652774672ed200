//! The loss over steps, as CSV and as SVG.

use std::fmt::Write;

/// What was reported of a run: step, learning rate, loss; step, held-out loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    train: Vec<(u64, f64, f64)>,
    val: Vec<(u64, f64)>,
}

const HEAD: &str = "step,learning_rate,train_loss,val_loss";
const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 45.0;

impl Curve {
    /// A step's loss while training.
    pub fn trained(&mut self, step: u64, lr: f64, loss: f64) {
        self.train.push((step, lr, loss));
    }

    /// The held-out loss after a step.
    pub fn evaluated(&mut self, step: u64, loss: f64) {
        self.val.push((step, loss));
    }

    /// As CSV, in the order of steps. Numbers are written so that they come back as they were.
    pub fn csv(&self) -> String {
        let mut rows: Vec<(u64, bool, String)> = Vec::new();
        rows.extend(self.train.iter().map(|(s, lr, l)| (*s, false, format!("{s},{lr},{l},"))));
        rows.extend(self.val.iter().map(|(s, l)| (*s, true, format!("{s},,,{l}"))));
        rows.sort_by_key(|r| (r.0, r.1));
        let mut out = format!("{HEAD}\n");
        rows.iter().for_each(|r| out.extend([r.2.as_str(), "\n"]));
        out
    }

    /// Reads what [`Curve::csv`] wrote.
    pub fn parse(csv: &str) -> Result<Curve, String> {
        let mut curve = Curve::default();
        for (n, line) in csv.lines().enumerate().skip(1) {
            let bad = || format!("line {} is not {HEAD}", n + 1);
            let f: Vec<&str> = line.split(',').collect();
            let number = |i: usize| f.get(i).and_then(|v| v.parse::<f64>().ok()).ok_or_else(bad);
            let step = f.first().and_then(|v| v.parse().ok()).ok_or_else(bad)?;
            match f.get(3) {
                Some(v) if !v.is_empty() => curve.evaluated(step, number(3)?),
                _ => curve.trained(step, number(1)?, number(2)?),
            }
        }
        Ok(curve)
    }

    /// As a plot.
    pub fn svg(&self, title: &str) -> String {
        let train = || self.train.iter().map(|&(s, _, l)| (s as f64, l)).filter(|p| p.1.is_finite());
        let val = || self.val.iter().map(|&(s, l)| (s as f64, l)).filter(|p| p.1.is_finite());
        let last = train().chain(val()).map(|p| p.0).fold(1.0, f64::max);
        let (mut low, mut high) = train().chain(val()).map(|p| p.1).fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let tick = nice((high - low).max(1e-6) / 6.0);
        let (low, high) = ((low / tick).floor() * tick, (high / tick).ceil().max((low / tick).floor() + 1.0) * tick);
        let x = |s: f64| LEFT + s / last * (WIDTH - LEFT - RIGHT);
        let y = |l: f64| HEIGHT - BOTTOM - (l - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
        let mut s = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        let title = title.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(s, "<text x=\"{LEFT}\" y=\"20\">{title}</text>");
        let _ = writeln!(s, "<text x=\"{LEFT}\" y=\"38\" fill=\"#1f77b4\">training</text>");
        let _ = writeln!(s, "<text x=\"{}\" y=\"38\" fill=\"#d62728\">held out</text>", LEFT + 70.0);
        let digits = (-tick.log10().floor()).max(0.0) as usize;
        for n in 0..=((high - low) / tick).round() as usize {
            let v = low + n as f64 * tick;
            let _ = writeln!(s, "<path d=\"M{LEFT} {0:.1}H{1}\" stroke=\"#ddd\"/>", y(v), WIDTH - RIGHT);
            let _ = writeln!(s, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{v:.digits$}</text>", LEFT - 6.0, y(v) + 4.0);
        }
        let every = nice(last / 8.0).max(1.0);
        for n in 0..=(last / every) as usize {
            let v = n as f64 * every;
            let _ = writeln!(s, "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{v}</text>", x(v), HEIGHT - BOTTOM + 18.0);
        }
        let _ = writeln!(s, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">step</text>", WIDTH / 2.0, HEIGHT - 8.0);
        let line = |points: Vec<(f64, f64)>| points.iter().map(|p| format!("{:.1},{:.1} ", x(p.0), y(p.1))).collect::<String>();
        let stroke = |color: &str, width: f64, points: String| {
            format!("<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" points=\"{}\"/>\n", points.trim_end())
        };
        s += &stroke("#1f77b4", 1.0, line(train().collect()));
        s += &stroke("#d62728", 2.0, line(val().collect()));
        for (step, loss) in val() {
            let _ = writeln!(
                s,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"#d62728\"><title>step {step}: {loss:.4}</title></circle>",
                x(step),
                y(loss)
            );
        }
        s.push_str("</svg>\n");
        s
    }
}

/// The next of 1, 2, 5, 10, … from `v` on.
fn nice(v: f64) -> f64 {
    let ten = 10f64.powf(v.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * ten).find(|&n| n >= v * 0.999).unwrap_or(10.0 * ten)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_comes_back_and_the_plot_holds_every_point() {
        let mut c = Curve::default();
        for step in 1..=40u64 {
            c.trained(step * 10, 1e-3 / step as f64, 4.17f32 as f64 / (step as f64).sqrt());
        }
        c.evaluated(250, 1.0 / 3.0);
        c.evaluated(400, f64::NAN);
        let again = Curve::parse(&c.csv()).unwrap();
        assert_eq!(again.csv(), c.csv());
        assert!(c.csv().contains("\n250,,,0.3333333333333333\n"), "{}", c.csv());
        let svg = c.svg("a & b");
        assert!(svg.contains("a &amp; b") && !svg.contains("NaN"));
        let points = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(points.split(' ').count(), 40);
        assert!(Curve::parse("step\n1,x,2,").is_err());
        assert!(Curve::default().svg("").contains("</svg>"));
    }
}
