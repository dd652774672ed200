//! Which elements of a cooperative matrix each lane of a subgroup holds.

use crate::shader::TemplateValue;

/// Where a bit of a row's or a column's number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementBit {
    /// From this bit of the lane's number.
    Lane(u8),
    /// From this bit of the number of the element among those of the lane.
    Element(u8),
}

/// The elements of a square matrix of f32 sums, and of a left operand of f16 alike, by lane: each bit of the row's and of the column's number is a bit
/// of the lane's number or of the element's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MatrixElements {
    row: Vec<ElementBit>,
    column: Vec<ElementBit>,
}

impl MatrixElements {
    /// Matrices of 8 × 8 on Apple's GPUs, by 32 lanes (MLX and llama.cpp use the same order).
    pub fn simdgroup() -> MatrixElements {
        use ElementBit::{Element, Lane};
        MatrixElements { row: vec![Lane(1), Lane(2), Lane(4)], column: vec![Element(0), Lane(0), Lane(3)] }
    }

    /// The order in which lanes hold a matrix of `edge` × `edge`, found by what they hold: `places[lane * count + element]` is `row * edge + column` of
    /// each of a lane's `count` elements. `None` where it is none that kernels can use.
    pub fn find(edge: u32, places: &[u32], count: usize) -> Option<MatrixElements> {
        let lanes = places.len().checked_div(count)?;
        if !edge.is_power_of_two() || !lanes.is_power_of_two() || !count.is_power_of_two() || places.len() != (edge * edge) as usize {
            return None;
        }
        let source = |bit: u32| {
            let lane = (0..lanes.ilog2()).find(|b| places[count << b] == bit).map(|b| ElementBit::Lane(b as u8));
            lane.or_else(|| (0..count.ilog2()).find(|b| places[1 << b] == bit).map(|b| ElementBit::Element(b as u8)))
        };
        let bits = |first: u32| (0..edge.ilog2()).map(|b| source(first << b)).collect::<Option<Vec<_>>>();
        let found = MatrixElements { row: bits(edge)?, column: bits(1)? };
        let same = (0..places.len()).all(|n| found.place(n / count, n % count) == (places[n] / edge, places[n] % edge));
        (same && edge >= 8).then_some(found)
    }

    /// Row and column of an element of a lane.
    pub fn place(&self, lane: usize, element: usize) -> (u32, u32) {
        let number = |bits: &[ElementBit]| {
            let bit = |b: &ElementBit| match *b {
                ElementBit::Lane(b) => lane >> b & 1,
                ElementBit::Element(b) => element >> b & 1,
            };
            bits.iter().enumerate().map(|(n, b)| (bit(b) as u32) << n).sum()
        };
        (number(&self.row), number(&self.column))
    }

    /// The bits of an element's number that `bits` have.
    fn element_bits(bits: &[ElementBit]) -> impl Iterator<Item = u8> {
        bits.iter().filter_map(|b| if let ElementBit::Element(b) = b { Some(*b) } else { None })
    }

    /// Rows of which a lane has elements.
    pub fn lane_rows(&self) -> u32 {
        1 << Self::element_bits(&self.row).count()
    }

    /// Elements of a row that a lane has.
    pub fn row_elements(&self) -> u32 {
        1 << Self::element_bits(&self.column).count()
    }

    /// The bit of the lane with which another one has the other half of a quad; 0 where lanes have no neighbours in a row.
    fn quad_partner(&self) -> u32 {
        match self.column[..] {
            [ElementBit::Element(0), ElementBit::Lane(b), ..] => 1 << b,
            _ => 0,
        }
    }

    /// Whether rows of `count` matrices side by side leave whole.
    pub fn stores(&self, count: u32) -> bool {
        self.quad_partner() == 0 || (count * self.row_elements()).is_multiple_of(4)
    }

    /// WGSL of a row's or a column's number, by `lid` and the number `k` of an element.
    fn number(bits: &[ElementBit]) -> String {
        let term = |(n, b): (usize, &ElementBit)| match *b {
            ElementBit::Lane(b) => format!("(((lid >> {b}u) & 1u) << {n}u)"),
            ElementBit::Element(b) => format!("(((k >> {b}u) & 1u) << {n}u)"),
        };
        bits.iter().enumerate().map(term).collect::<Vec<_>>().join(" | ")
    }

    /// WGSL of the number of an element, by `row` among the lane's rows and `n` among its elements of that row.
    fn element_of(&self) -> String {
        let terms = |name: &'static str, bits: &[ElementBit]| -> Vec<String> {
            let term = |(from, to): (usize, u8)| format!("((({name} >> {from}u) & 1u) << {to}u)");
            Self::element_bits(bits).enumerate().map(term).collect()
        };
        [vec!["0u".to_string()], terms("row", &self.row), terms("n", &self.column)].concat().join(" | ")
    }

    /// What `coop_elements.wgsl` asks about.
    pub fn values(&self) -> Vec<(&'static str, TemplateValue)> {
        // Among the lanes that share a row.
        let combined = |combine: &str| -> String {
            let step = |b: &ElementBit| match *b {
                ElementBit::Lane(b) => format!("{{ let o = subgroupShuffleXor(r, {}u); r = {combine}; }} ", 1u32 << b),
                ElementBit::Element(_) => String::new(),
            };
            self.column.iter().map(step).collect()
        };
        vec![
            ("ELEMENT_ROW", Self::number(&self.row).into()),
            ("ELEMENT_COLUMN", Self::number(&self.column).into()),
            ("ELEMENT_OF", self.element_of().into()),
            ("ROW_MAX", combined("max(r, o)").into()),
            ("ROW_SUM", combined("r + o").into()),
            ("QUAD_PARTNER", self.quad_partner().into()),
        ]
    }

    /// Its constants.
    pub fn consts(&self) -> [(&'static str, u32); 3] {
        let (rows, each) = (self.lane_rows(), self.row_elements());
        [("LANE_ROWS", rows), ("ROW_ELEMENTS", each), ("ELEMENTS", rows * each)]
    }
}

#[cfg(test)]
mod tests {
    use super::{ElementBit, MatrixElements};

    /// The places of a matrix of `edge` × `edge` by lanes of `count` elements.
    fn places(edge: u32, count: u32, place: impl Fn(u32, u32) -> [u32; 2]) -> Vec<u32> {
        let of = |n| place(n / count, n % count);
        (0..edge * edge).map(|n| of(n)[0] * edge + of(n)[1]).collect()
    }

    #[test]
    fn orders_are_found_by_what_lanes_hold() {
        let nvidia = places(16, 8, |l, e| [l / 4 + e / 4 * 8, l % 4 * 2 + e % 2 + e / 2 % 2 * 8]);
        let found = MatrixElements::find(16, &nvidia, 8).unwrap();
        assert_eq!((found.lane_rows(), found.row_elements(), found.quad_partner()), (2, 4, 1));
        let columns = places(8, 8, |l, e| [e, l]);
        let found = MatrixElements::find(8, &columns, 8).unwrap();
        assert_eq!((found.lane_rows(), found.row_elements(), found.quad_partner()), (8, 1, 0));
        let apple = places(8, 2, |l, e| [(l >> 2 & 4) | (l >> 1 & 3), (l >> 1 & 4) | (l & 1) << 1 | e]);
        assert_eq!(MatrixElements::find(8, &apple, 2), Some(MatrixElements::simdgroup()));
        for (edge, places, count) in [(16, nvidia, 8usize), (8, columns, 8), (8, apple, 2)] {
            let found = MatrixElements::find(edge, &places, count).unwrap();
            let same = |n: usize| found.place(n / count, n % count) == (places[n] / edge, places[n] % edge);
            assert!((0..places.len()).all(same));
        }
    }

    #[test]
    fn orders_that_are_no_bits_are_none() {
        let transposed = places(8, 8, |l, e| [e, (l + e) % 8]);
        assert_eq!(MatrixElements::find(8, &transposed, 8), None);
        // A lane that holds an element twice.
        let twice = places(8, 8, |l, e| [e / 2 * 2, l]);
        assert_eq!(MatrixElements::find(8, &twice, 8), None);
        assert_eq!(MatrixElements::find(8, &[0; 64], 8), None);
        assert_eq!(MatrixElements::find(8, &[0; 63], 8), None);
        assert_eq!(MatrixElements::find(6, &[0; 36], 6), None);
        assert_eq!(MatrixElements::find(8, &[], 0), None);
        let lanes = [ElementBit::Lane(0), ElementBit::Lane(1), ElementBit::Lane(2)];
        assert_eq!(MatrixElements::find(8, &places(8, 8, |l, e| [e, l]), 8).unwrap().column, lanes);
    }
}
