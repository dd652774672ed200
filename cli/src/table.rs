//! Aligned columns and short numbers for terminal output.

/// Rows as lines: columns as wide as their widest cell, those named in `right` aligned to the right.
pub fn lines(rows: &[Vec<String>], right: &[usize]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(c, cell)| {
            let pad = " ".repeat(widths[c] - cell.chars().count());
            if right.contains(&c) { format!("{pad}{cell}") } else { format!("{cell}{pad}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect()
}

/// A number with a prefix of thousands: `1.53 M`.
pub fn thousands(n: f64) -> String {
    let (scale, prefix) = match n {
        n if n >= 1e12 => (1e12, " T"),
        n if n >= 1e9 => (1e9, " G"),
        n if n >= 1e6 => (1e6, " M"),
        n if n >= 1e4 => (1e3, " k"),
        _ => return format!("{n:.0}"),
    };
    format!("{:.2}{prefix}", n / scale)
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".into(), "1".into(), "x".into()], vec!["bcd".into(), "22".into()]];
        assert_eq!(super::lines(&rows, &[1]), ["a     1  x", "bcd  22"]);
        assert_eq!([999.0, 12_340.0, 1.5e6, 2e9].map(super::thousands), ["999", "12.34 k", "1.50 M", "2.00 G"]);
    }
}
