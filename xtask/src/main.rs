//! Developer commands: `cargo xtask NAME`.
fn main() {
    eprintln!("usage: cargo xtask NAME");
    std::process::exit(2);
}
