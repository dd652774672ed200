//! Made-up curves whose knees are known, a made-up system, and the measurement itself on every device.

use super::knees::levels;
use super::system::system_caches;
use super::*;
use crate::error::TensorError;
use proptest::prelude::*;

/// The points of a hierarchy with these sizes and latencies in ns; one more latency than sizes. A cache that is too small serves the part
/// of the reads that it holds, if it replaces at `random`, else none.
fn curve(sizes: &[f64], ns: &[f64], random: bool, noise: &[f64]) -> Vec<WorkingSet> {
    let options = HierarchyOptions { largest: 1 << 28, ..HierarchyOptions::new() };
    let point = |(n, bytes): (usize, u64)| {
        let w = bytes as f64;
        let mut latency = ns[0];
        for (size, pair) in sizes.iter().zip(ns.windows(2)) {
            let missed = if w <= *size {
                0.0
            } else if random {
                1.0 - size / w
            } else {
                1.0
            };
            latency += missed * (pair[1] - pair[0]);
        }
        let factor = 1.0 + noise.get(n).copied().unwrap_or_default();
        WorkingSet { bytes, latency: latency * 1e-9 * factor, read: 1e12 / latency, copy: 5e11 / latency, hits: None }
    };
    options.sizes(1024).into_iter().enumerate().map(point).collect()
}

/// The knees of a curve are those that it was made with, within a quarter.
fn check(sizes: &[f64], faster: f64, random: bool, noise: &[f64]) -> Result<(), TestCaseError> {
    let ns: Vec<f64> = (0..=sizes.len()).map(|n| faster.powi(n as i32)).collect();
    let found = levels(&curve(sizes, &ns, random, noise));
    prop_assert_eq!(found.len(), ns.len(), "{:?} instead of {:?}", found, sizes);
    for (level, want) in found.iter().zip(sizes) {
        let got = level.size.unwrap() as f64;
        prop_assert!((got / want - 1.0).abs() < 0.25, "{} instead of {}", got, want);
    }
    prop_assert!(found.windows(2).all(|w| w[0].latency < w[1].latency && w[0].size < w[1].size.or(Some(u64::MAX))));
    prop_assert!(found.last().unwrap().size.is_none());
    Ok(())
}

proptest! {
    #[test]
    fn knees_are_read_within_a_quarter(
        first in 4.0f64..6.5, second in 3.0f64..5.5, third in 3.0f64..4.5, faster in 3.0f64..6.0,
        noise in prop::collection::vec(-0.05f64..0.05, 80),
    ) {
        // From 64 KiB on each is at least eight times the one before.
        let sizes = [first, first + second, first + second + third].map(|octaves| 4096.0 * octaves.exp2());
        check(&sizes.into_iter().filter(|s| *s <= 16e6).collect::<Vec<_>>(), faster, false, &noise)?;
    }

    #[test]
    fn knees_of_caches_that_replace_at_random_are_read(
        first in 4.0f64..6.0, second in 4.0f64..5.5, faster in 3.0f64..5.0, noise in prop::collection::vec(-0.02f64..0.02, 80),
    ) {
        check(&[first, first + second].map(|octaves| 4096.0 * octaves.exp2()), faster, true, &noise)?;
    }

    #[test]
    fn a_flat_curve_has_one_level(noise in prop::collection::vec(-0.08f64..0.08, 80)) {
        let found = levels(&curve(&[], &[2.0], false, &noise));
        prop_assert_eq!(found.len(), 1);
        prop_assert!(found[0].size.is_none() && (found[0].latency - 2e-9).abs() < 2e-10);
    }
}

#[test]
fn levels_have_the_rates_of_their_working_sets() {
    let found = levels(&curve(&[65536.0, 2097152.0], &[1.0, 4.0, 100.0], false, &[]));
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    assert!(near(found[0].latency, 1e-9) && near(found[0].read, 1e12) && near(found[0].copy, 5e11), "{found:?}");
    assert!(near(found[2].latency, 1e-7) && near(found[2].read, 1e10) && found[2].size.is_none(), "{found:?}");
    assert_eq!(levels(&[]), []);
}

/// A folder like the system's, removed at the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(caches: &[[&str; 3]]) -> Folder {
        let root = std::env::temp_dir().join(format!("tl-caches-{}-{}", std::process::id(), caches.len()));
        for (n, [level, kind, size]) in caches.iter().enumerate() {
            let at = root.join(format!("index{n}"));
            std::fs::create_dir_all(&at).unwrap();
            for (file, value) in [("level", level), ("type", kind), ("size", size), ("coherency_line_size", &"64")] {
                std::fs::write(at.join(file), format!("{value}\n")).unwrap();
            }
        }
        Folder(root)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn levels_are_compared_with_the_systems() {
    let folder = Folder::new(&[
        ["1", "Data", "64K"],
        ["1", "Instruction", "32K"],
        ["3", "Unified", "32M"],
        ["2", "Unified", "1024K"],
        ["4", "Unified", "?"],
    ]);
    let told = system_caches(&folder.0);
    let cache = |level, size| SystemCache { level, size, line: Some(64) };
    assert_eq!(told, [cache(1, 64 << 10), cache(2, 1 << 20), cache(3, 32 << 20)]);
    // The last cache is half as large as told: other machines use it, too. Nothing is near the second.
    let h = Hierarchy::of("a device".into(), curve(&[65536.0, 18e6], &[1.0, 8.0, 90.0], false, &[]), told);
    let parts: Vec<Option<f64>> = h.compared().iter().map(|c| c.1).collect();
    assert!(parts[0].is_some_and(|p| (0.75..1.25).contains(&p)) && parts[1].is_none(), "{parts:?}");
    assert!(parts[2].is_some_and(|p| (0.5..0.7).contains(&p)), "{parts:?}");
    let text = h.to_string();
    assert!(text.contains("the system's L2: 1024 KiB, no level near it was measured") && text.contains("beyond"), "{text}");
    let svg = h.svg();
    assert_eq!(["class=\"level\"", "class=\"told\"", "<polyline"].map(|what| svg.matches(what).count()), [2, 3, 3]);
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    assert_eq!(h.to_json()["system"][1]["measured"], Value::Null);
}

#[test]
fn nothing_is_told_where_the_folder_is_hidden() {
    assert_eq!(system_caches(Path::new("/nonexistent/cache")), []);
    let h = Hierarchy::of("a device".into(), curve(&[], &[1.0], false, &[]), vec![]);
    assert!(h.compared().is_empty() && h.to_string().contains("the system reports nothing"));
}

#[test]
fn every_device_is_measured() -> Result<(), TensorError> {
    for d in [Device::cpu()].into_iter().chain(crate::device::under_test::gpu()) {
        let h = hierarchy(&d, &HierarchyOptions::quick())?;
        assert_eq!(h.points.iter().map(|p| p.bytes).collect::<Vec<_>>(), [4096, 8192, 16384, 32768, 65536], "{}", d.name());
        assert!(h.points.iter().all(|p| [p.latency, 1.0 / p.read, 1.0 / p.copy].iter().all(|s| *s > 0.0 && s.is_finite())));
        // Counters exist only where they can be opened, and only for the host's memory.
        let counted = d.capabilities().host_memory && CacheCounters::open().is_some();
        assert!(counted || h.points.iter().all(|p| p.hits.is_none()));
        assert!(h.points.iter().filter_map(|p| p.hits).all(|r| (0.0..=1.0).contains(&r)));
        // A GPU's caches are not in the system's list.
        assert!(d.capabilities().host_memory || h.system.is_empty());
    }
    // The largest working set that the time allows is the last.
    let none = HierarchyOptions { time: Duration::ZERO, ..HierarchyOptions::quick() };
    assert_eq!(hierarchy(&Device::cpu(), &none)?.points.len(), 1);
    Ok(())
}
