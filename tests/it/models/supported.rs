//! The table of architectures in `docs/models.md` is the library's list.

use tensorlogic::models::supported;

#[test]
fn the_table_is_the_list() {
    let text = std::fs::read_to_string(concat!(env!("TENSORLOGIC_ROOT"), "/docs/models.md")).unwrap();
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
    let row = |names: &[&str], gguf: Option<&str>| {
        let names: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
        format!("| {} | {} |", names.join(", "), gguf.map_or("no".to_string(), |name| format!("`{name}`")))
    };
    let want: Vec<String> = supported().map(|a| row(a.names, a.gguf)).collect();
    assert!(want.len() > 70);
    assert_eq!(rows, want, "docs/models.md has to be:\n{}", want.join("\n"));
}
