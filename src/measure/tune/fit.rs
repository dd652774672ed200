//! Costs of the tiles of a product, fitted to times of products in which each tile is the only one.

use crate::tuning::{GemmTile, Tuning};

/// The time of a product by one tile without split-K.
#[derive(Clone, Copy, Debug)]
pub(super) struct TileTime {
    /// M, N and K.
    pub size: [usize; 3],
    /// Which sides are stored the other way, as `2 * left + right`.
    pub layout: usize,
    /// Microseconds, without what any dispatch takes.
    pub us: f64,
}

/// A tile of the table and its times.
pub(super) struct TileTimes {
    pub tile: GemmTile,
    pub times: Vec<TileTime>,
}

/// Compute units of GPUs that there are.
const UNITS: [u32; 44] = [
    4, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 30, 32, 34, 36, 38, 40, 46, 48, 54, 56, 60, 64, 66, 68, 72, 76, 78, 80, 82, 84, 96,
    104, 108, 114, 120, 128, 132, 142, 148, 170, 188,
];

/// The model of `gemm_coop`, for one part: workgroups of a unit take turns, and each leaves its results.
struct Terms {
    steps: f64,
    rounds: f64,
    /// Microseconds of leaving the results.
    stored: f64,
}

impl Terms {
    fn of(time: &TileTime, tile: &GemmTile, edge: u32, units: u32, store_us: f64) -> Terms {
        let [high, wide] = [0, 1].map(|i| (tile.warps[i] * tile.fragments[i] * edge) as usize);
        let [m, n, k] = time.size;
        let rounds = (m.div_ceil(high) * n.div_ceil(wide)).div_ceil(units.max(1) as usize) as f64;
        Terms { steps: k.div_ceil(tile.bk as usize) as f64, rounds, stored: rounds * (high * wide) as f64 * store_us }
    }
    fn time(&self, busy: f64, alone: f64) -> f64 {
        self.steps * (self.rounds * busy).max(alone) + self.stored
    }
}

/// Four digits: a file keeps them exactly, and more of them is noise.
fn rounded(us: f64) -> f64 {
    format!("{us:.3e}").parse().unwrap_or(us)
}

/// The costs of a tile that come nearest to its times on a GPU of so many compute units, and the sum of the squares of what is left, as logarithms.
fn fit_tile(of: &TileTimes, edge: u32, units: u32, store_us: f64) -> (GemmTile, f64) {
    let terms = |t: &TileTime| Terms::of(t, &of.tile, edge, units, store_us);
    let plain: Vec<(&TileTime, Terms)> = of.times.iter().filter(|t| t.layout == 0).map(|t| (t, terms(t))).collect();
    let rest = |t: &TileTime, terms: &Terms| (t.us - terms.stored).max(0.05 * t.us);
    let error = |busy: f64, alone: f64| plain.iter().map(|(t, terms)| (terms.time(busy, alone) / t.us).ln().powi(2)).sum::<f64>();
    let mut best = (of.tile.busy_us[0], of.tile.alone_us, f64::INFINITY);
    for (t, x) in &plain {
        let busy = rest(t, x) / (x.steps * x.rounds);
        for (t, y) in &plain {
            let alone = rest(t, y) / y.steps;
            let e = error(busy, alone);
            if e < best.2 {
                best = (busy, alone, e);
            }
        }
    }
    let (busy, alone, error) = best;
    let mut tile = GemmTile { busy_us: [rounded(busy); 4], alone_us: rounded(alone), ..of.tile };
    // The other layouts relative to the first at the same size.
    for layout in 1..4 {
        let Some(other) = of.times.iter().find(|t| t.layout == layout) else { continue };
        let Some((same, _)) = plain.iter().find(|(t, _)| t.size == other.size) else { continue };
        tile.busy_us[layout] = rounded(busy * other.us / same.us);
    }
    (tile, if plain.is_empty() { f64::INFINITY } else { error })
}

/// The table with fitted costs of the measured tiles, for its own number of compute units, and for the number that explains the times better,
/// where there is one.
pub(super) fn fit(class: &Tuning, measured: &[TileTimes], edge: u32) -> Vec<(String, Tuning)> {
    if measured.is_empty() {
        return Vec::new();
    }
    let with = |units: u32| -> (Tuning, f64) {
        let mut table = class.clone();
        table.compute_units = units;
        let mut error = 0.0;
        for of in measured {
            let (fitted, e) = fit_tile(of, edge, units, class.gemm.store_us);
            error += e;
            for tile in table.gemm.tiles.iter_mut().filter(|t| **t == of.tile) {
                *tile = fitted;
            }
        }
        (table, error)
    };
    let (own, own_error) = with(class.compute_units);
    let mut out = vec![("measured costs of tiles".to_string(), own)];
    let best = UNITS.into_iter().map(|u| (u, with(u))).min_by(|a, b| a.1.1.total_cmp(&b.1.1));
    if let Some((units, (table, error))) = best.filter(|(u, (_, e))| *u != class.compute_units && *e < 0.8 * own_error) {
        debug_assert!(error.is_finite());
        out.push((format!("measured costs of tiles, {units} compute units"), table));
        out.push((format!("{units} compute units"), Tuning { compute_units: units, ..class.clone() }));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes times by the model for a GPU of `units` whose tiles cost `scale` times what the table says, and fits them.
    #[track_caller]
    fn check(units: u32, scale: f64) {
        let class = Tuning::nvidia();
        let measured: Vec<TileTimes> = class
            .gemm
            .tiles
            .iter()
            .map(|tile| {
                let real = GemmTile { busy_us: tile.busy_us.map(|b| b * scale), alone_us: tile.alone_us * scale, ..*tile };
                let time = |m: usize, layout: usize| {
                    let mut t = TileTime { size: [m, 2048, 1024], layout, us: 0.0 };
                    t.us = Terms::of(&t, &real, 16, units, class.gemm.store_us).time(real.busy_us[layout], real.alone_us);
                    t
                };
                let layouts = (1..4).map(|l| time(1024, l));
                TileTimes { tile: *tile, times: [16, 64, 256, 1024, 4096].map(|m| time(m, 0)).into_iter().chain(layouts).collect() }
            })
            .collect();
        let tables = fit(&class, &measured, 16);
        let (_, table) = tables.iter().rev().find(|(name, _)| name.starts_with("measured")).unwrap();
        table.check().unwrap();
        // What counts is that the fitted table foretells the times of the GPU, not that it has the same numbers.
        for (of, tile) in measured.iter().zip(&table.gemm.tiles) {
            for t in of.times.iter().filter(|t| t.layout == 0) {
                let foretold = Terms::of(t, tile, 16, table.compute_units, class.gemm.store_us).time(tile.busy_us[0], tile.alone_us);
                assert!((foretold / t.us).ln().abs() < 0.15, "{units} units: {:?} takes {} µs, foretold {foretold}", t.size, t.us);
            }
        }
    }

    #[test]
    fn costs_are_found_again() {
        check(132, 1.0);
        check(132, 1.7);
        check(46, 1.3);
        check(20, 3.0);
    }
}
