//! Every technique is there on every device, with checked results; a wrong result and a lost gain are seen.

use super::*;
use crate::measure::Options;

fn devices() -> Vec<Device> {
    [Device::cpu()].into_iter().chain(crate::device::under_test::gpu()).collect()
}

#[test]
fn every_technique_is_measured_on_every_device() {
    for d in devices() {
        let mut seen = Vec::new();
        let (techniques, records) = caches(&d, &Options::quick(), &mut |t| seen.push(t.to_string())).unwrap();
        assert_eq!(seen, techniques.iter().map(Technique::to_string).collect::<Vec<_>>());
        let rows: Vec<(&str, &str)> = techniques.iter().map(|t| (t.name, t.work.split(' ').next().unwrap_or_default())).collect();
        let expected = [
            ("tiling", "product"),
            ("tiling", "transpose"),
            ("blocking", "softmax"),
            ("transposition", "product"),
            ("prefetching", if d.capabilities().shaders { "product" } else { "gather" }),
            ("order", "gather"),
            ("library", "product"),
            ("library", "softmax"),
        ];
        let missing = d.capabilities().host_memory && !loops::PREFETCHES;
        assert_eq!(rows, expected.into_iter().filter(|r| !(missing && r.0 == "prefetching")).collect::<Vec<_>>(), "{}", d.name());
        assert_eq!(records.len(), 2 * techniques.len());
        for (t, sides) in techniques.iter().zip(records.chunks(2)) {
            assert!(t.ratio() > 0.0 && t.ratio().is_finite() && t.off != t.on, "{t}");
            assert_eq!([&t.change.before, &t.change.after].map(|s| *s), [0, 1].map(|n| sides[n].time().median));
            assert!(sides.iter().all(|r| r.suite == "caches" && r.category == t.name && r.environment.device == d.name()));
        }
    }
}

#[test]
fn a_wrong_value_anywhere_is_not_reported() {
    let d = Device::cpu();
    for at in [0, 1000, 1599] {
        let pairs = host::pairs(true);
        let mut pair = pairs.into_iter().next().unwrap()(&d).unwrap();
        pair.data.expect[at] += 0.5;
        let e = pair.measure(&d, &Options::quick(), &Environment::of(&d)).unwrap_err().to_string();
        assert!(e.contains(&format!("element {at} of \"result by result\" is wrong")), "{e}");
    }
}

#[test]
fn losses_are_called_so() {
    let stats = |ms: f64| [Stats::of((0..9).map(|i| ms * (1.0 + 1e-4 * f64::from(i))).collect()).unwrap()];
    let of = |off: f64, on: f64| {
        let change = Change::between("x", &stats(off), &stats(on));
        Technique { name: "tiling", work: "product 64x64".into(), off: "plain", on: "tiles", change }
    };
    let [gain, loss, none] = [of(2.0, 1.0), of(1.0, 2.0), of(1.0, 1.001)];
    assert_eq!([gain.verdict(), loss.verdict(), none.verdict()], ["gain", "loss", "no difference"]);
    assert!((loss.ratio() - 0.5).abs() < 1e-3 && loss.to_string().contains("loss"));
}

/// Loops at sizes that are multiples of nothing, beside the plain ones.
#[test]
fn loops_do_the_same_with_and_without() {
    let n = 37;
    let x: Vec<f32> = (0..n * n).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0).collect();
    let y: Vec<f32> = x.iter().rev().copied().collect();
    let [mut a, mut b, mut c, mut transposed] = [(); 4].map(|()| vec![0f32; n * n]);
    loops::product(&x, &y, n, &mut a);
    loops::product_tiled(&x, &y, n, &mut b);
    loops::product_transposed(&x, &y, n, &mut transposed, &mut c);
    assert!(a.iter().zip(&b).zip(&c).all(|((a, b), c)| (a - b).abs() < 1e-4 && (a - c).abs() < 1e-4));
    assert!((0..n * n).all(|i| transposed[i] == y[i % n * n + i / n]));
    loops::transpose(&y, n, &mut a);
    assert_eq!(a, transposed);
    loops::softmax(&x, n, n, &mut a);
    loops::softmax(&x, n, 5, &mut b);
    assert_eq!(a, b);
    assert!(a.chunks(n).all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-5));
}
