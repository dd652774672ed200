//! The changes of a table that `tl tune` tries.

use super::cases::TuningGroup::{self, *};
use crate::tuning::{ElementTile, Tuning};

/// One change of one number, or of numbers that belong together.
pub(super) struct Candidate {
    pub group: TuningGroup,
    /// The number that is changed: of several candidates for it one at most is kept.
    pub field: &'static str,
    /// What it becomes.
    pub value: String,
    pub apply: Box<dyn Fn(&mut Tuning)>,
}

/// A number of the table.
type Number = fn(&mut Tuning) -> &mut usize;

/// Thresholds that are tried at other multiples of the class's value.
const SCALED: [(TuningGroup, &str, Number, &[f64]); 19] = [
    (Gemm, "gemm.min_split_k", |t| &mut t.gemm.min_split_k, &[0.5, 2.0]),
    (Gemv, "gemv.full_threads", |t| &mut t.gemv.full_threads, &[0.5, 2.0, 0.25]),
    (Gemv, "gemv.busy_rows", |t| &mut t.gemv.busy_rows, &[0.5, 2.0, 0.25]),
    (Gemv, "gemv.int8_min_blocks[0]", |t| &mut t.gemv.int8_min_blocks[0], &[0.25, 4.0]),
    (Gemv, "gemv.int8_full_threads", |t| &mut t.gemv.int8_full_threads, &[0.5, 2.0]),
    (Gemv, "gemv.int8_max_threads", |t| &mut t.gemv.int8_max_threads, &[0.5, 2.0]),
    (Attention, "attention.split_groups[0]", |t| &mut t.attention.split_groups[0], &[0.5, 2.0]),
    (Attention, "attention.split_groups[1]", |t| &mut t.attention.split_groups[1], &[0.5, 2.0]),
    (Attention, "attention.split_min_bytes", |t| &mut t.attention.split_min_bytes, &[0.5, 2.0]),
    (Attention, "attention.split_bytes", |t| &mut t.attention.split_bytes, &[0.5, 2.0]),
    (Attention, "attention.shared_bytes[0]", |t| &mut t.attention.shared_bytes[0], &[0.25, 4.0]),
    (Attention, "attention.large_groups", |t| &mut t.attention.large_groups, &[0.5, 2.0]),
    (Attention, "attention.subgroup_sync_groups", |t| &mut t.attention.subgroup_sync_groups, &[0.5, 2.0]),
    (Reduce, "reduce.full_groups", |t| &mut t.reduce.full_groups, &[0.5, 2.0, 0.25]),
    (Reduce, "reduce.split_elements", |t| &mut t.reduce.split_elements, &[0.5, 2.0]),
    (Reduce, "reduce.arg_split_elements", |t| &mut t.reduce.arg_split_elements, &[0.5, 2.0]),
    (Rows, "rows.multi_row_min_rows", |t| &mut t.rows.multi_row_min_rows, &[0.5, 2.0, 0.25]),
    (Rows, "rows.subgroup_min_rows", |t| &mut t.rows.subgroup_min_rows, &[0.5, 2.0, 0.25]),
    (Map, "map.tile_min_elements", |t| &mut t.map.tile_min_elements, &[0.25, 1024.0]),
];

/// Numbers that are tried at these values.
const SET: [(TuningGroup, &str, Number, &[usize]); 4] = [
    (Gemv, "gemv.max_rows_f16", |t| &mut t.gemv.max_rows_f16, &[1, 2, 4, 8]),
    (Attention, "attention.flash_min_queries", |t| &mut t.attention.flash_min_queries, &[16, 64]),
    (Unpack, "unpack.min_rows", |t| &mut t.unpack.min_rows, &[32, 128]),
    (Unpack, "unpack.min_rows_large", |t| &mut t.unpack.min_rows_large, &[9, 32, 64]),
];

/// Tiles of attention or of its gradients, of narrow and of wide heads.
type Tiles = fn(&mut Tuning) -> &mut [ElementTile; 2];

/// Tiles whose scores stay in the elements of matrices.
const ELEMENT_TILES: [(&str, Tiles, usize); 6] = [
    ("attention.elements[0]", |t| &mut t.attention.elements, 0),
    ("attention.elements[1]", |t| &mut t.attention.elements, 1),
    ("attention.elements_queries[0]", |t| &mut t.attention.elements_queries, 0),
    ("attention.elements_queries[1]", |t| &mut t.attention.elements_queries, 1),
    ("attention.elements_keys[0]", |t| &mut t.attention.elements_keys, 0),
    ("attention.elements_keys[1]", |t| &mut t.attention.elements_keys, 1),
];

/// What may be changed in the class's table; `fitted` are tables with other costs of tiles.
pub(super) fn candidates(class: &Tuning, fitted: Vec<(String, Tuning)>) -> Vec<Candidate> {
    let mut all: Vec<Candidate> = fitted
        .into_iter()
        .map(|(value, table)| {
            let apply = Box::new(move |t: &mut Tuning| (t.compute_units, t.gemm.tiles) = (table.compute_units, table.gemm.tiles.clone()));
            Candidate { group: Gemm, field: "gemm.tiles", value, apply }
        })
        .collect();
    for factor in [0.5, 2.0] {
        let apply = Box::new(move |t: &mut Tuning| t.gemm.split_us.iter_mut().for_each(|us| *us *= factor));
        all.push(Candidate { group: Gemm, field: "gemm.split_us", value: format!("{factor} times as long"), apply });
    }
    for factor in [0.25, 0.5, 2.0, 4.0] {
        let scaled = class.map.multi_quad_elements.map(|n| (n as f64 * factor) as usize);
        let apply = Box::new(move |t: &mut Tuning| t.map.multi_quad_elements = scaled);
        all.push(Candidate { group: Map, field: "map.multi_quad_elements", value: format!("{scaled:?}"), apply });
    }
    let elements = !class.gemm.elements;
    let apply = Box::new(move |t: &mut Tuning| t.gemm.elements = elements);
    all.push(Candidate { group: Gemm, field: "gemm.elements", value: elements.to_string(), apply });
    let shapes = [(4, 1, 32), (4, 2, 32), (4, 1, 64), (8, 1, 32), (8, 1, 64)].map(|(s, f, c)| ElementTile::new(s, f, c));
    for (field, tiles, n) in ELEMENT_TILES {
        for tile in shapes.into_iter().filter(|t| *t != tiles(&mut class.clone())[n]) {
            let apply = Box::new(move |t: &mut Tuning| tiles(t)[n] = tile);
            all.push(Candidate { group: Attention, field, value: tile.to_string(), apply });
        }
    }
    let mut set = |group: TuningGroup, field: &'static str, number: Number, n: usize| {
        if *number(&mut class.clone()) != n {
            all.push(Candidate { group, field, value: n.to_string(), apply: Box::new(move |t| *number(t) = n) });
        }
    };
    for (group, field, number, factors) in SCALED {
        let old = *number(&mut class.clone());
        factors.iter().for_each(|f| set(group, field, number, ((old as f64 * f) as usize).max(1)));
    }
    for (group, field, number, values) in SET {
        values.iter().for_each(|&n| set(group, field, number, n));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_candidate_changes_its_group_alone_and_passes_the_check() {
        for name in Tuning::NAMES {
            let class = Tuning::named(name).unwrap();
            let fitted = vec![("half the units".to_string(), Tuning { compute_units: class.compute_units / 2, ..class.clone() })];
            let all = candidates(&class, fitted);
            assert!(TuningGroup::ALL.iter().all(|g| all.iter().any(|c| c.group == *g)), "{name}");
            for c in &all {
                let mut table = class.clone();
                (c.apply)(&mut table);
                table.check().unwrap();
                assert_ne!(table, class, "{name}: {} to {}", c.field, c.value);
                c.group.copy(&class, &mut table);
                assert_eq!(table, class, "{name}: {} to {}", c.field, c.value);
            }
        }
    }
}
