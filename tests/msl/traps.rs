//! What Apple's compiler is known to get wrong, looked for in every Metal source before it is executed.

/// The parameters of a source's kernel and its body, if naga's form is recognized.
pub fn kernel<'t>(source: &'t str, entry: &str) -> Option<(&'t str, &'t str)> {
    let from = source.find(&format!("kernel void {entry}("))?;
    source[from..].split_once("\n) {\n")
}

/// The part of a source that a bracket at its beginning encloses.
fn block(source: &str) -> &str {
    let mut depth = 0;
    let end = source.char_indices().find_map(|(i, c)| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        (depth == 0 && c == '}').then_some(i)
    });
    &source[..end.unwrap_or(source.len())]
}

/// Whether a source names one of Metal's functions for SIMD-groups.
fn has_simd(source: &str) -> bool {
    source.match_indices("simd").any(|(at, _)| {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let name: &str = source[at..].split(|c| !word(c)).next().unwrap_or("");
        let starts = !source[..at].ends_with(word);
        starts && (name.starts_with("simd_") || name.starts_with("simdgroup_")) && source[at + name.len()..].starts_with(['(', '<'])
    })
}

/// The functions of a source that use SIMD-groups, themselves or by what they call.
fn functions_with_simd(source: &str) -> Vec<&str> {
    let mut functions = Vec::new();
    let mut rest = source;
    // naga writes each parameter on a line of its own; a definition ends in `) {` at the beginning of a line.
    while let Some(at) = rest.find("\n) {\n") {
        let (before, after) = rest.split_at(at);
        let open = before.rfind("(\n").unwrap_or(0);
        let name = before[..open].rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or("");
        functions.push((name, block(&after[3..])));
        rest = &after[1..];
    }
    let mut found: Vec<&str> = Vec::new();
    loop {
        let more = functions.iter().filter(|(name, body)| !found.contains(name) && (has_simd(body) || calls_one(body, &found)));
        let more: Vec<&str> = more.map(|f| f.0).filter(|name| !name.is_empty()).collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

fn calls_one(body: &str, names: &[&str]) -> bool {
    let calls = |name: &str| {
        let starts = |at: usize| !body[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        body.match_indices(&format!("{name}(")).any(|(at, _)| starts(at))
    };
    names.iter().any(|name| calls(name))
}

/// The threads of a group that the source gives as its bound.
fn threads(source: &str) -> Option<u32> {
    let given = source.split_once("max_total_threads_per_threadgroup(")?.1;
    given.split(')').next()?.parse().ok()
}

/// Says which of the known mistakes of Apple's compiler a source would meet.
pub fn trap(source: &str, entry: &str) -> Option<String> {
    let (parameters, body) = kernel(source, entry)?;
    if parameters.contains("threadgroup ") {
        return Some(format!("threadgroup memory is passed to the kernel (https://github.com/gfx-rs/wgpu/issues/4500)\n{parameters}"));
    }
    // Pipelines of at most 32 threads some of which return early.
    let early = body.trim_end().trim_end_matches('}').trim_end().trim_end_matches("return;").contains("return;");
    if let Some(threads) = threads(source).filter(|t| early && *t <= 32) {
        return Some(format!("threads of a group of {threads} return early (https://github.com/KhronosGroup/MoltenVK/issues/2711)"));
    }
    let helpers = functions_with_simd(source);
    for (at, _) in source.match_indices("switch(") {
        let inside = source[at..].find('{').map_or("", |open| block(&source[at + open..]));
        if has_simd(inside) || calls_one(inside, &helpers) {
            return Some("an operation of a SIMD-group inside of switch (https://github.com/gfx-rs/wgpu/issues/10135)".into());
        }
    }
    None
}

#[test]
fn each_trap_is_found() {
    let kernel = |parameters: &str, body: &str| {
        format!(
            "{body}\n[[max_total_threads_per_threadgroup(32)]] kernel void main_(\n  {parameters}\n) {{\n    inside(\n    x);\n    return;\n}}\n"
        )
    };
    let helper =
        "float inside(\n    float x\n) {\n    return other(x);\n}\nfloat other(\n    float x\n) {\n    return metal::simd_sum(x);\n}\n";
    assert_eq!(trap(&kernel("device float* x [[buffer(0)]]", helper), "main_"), None);
    let found = |source: &str, what: &str| {
        let told = trap(source, "main_").unwrap_or_else(|| panic!("{what} is not found in\n{source}"));
        assert!(told.contains(what), "{told}");
    };
    found(&kernel("threadgroup float* x", ""), "threadgroup memory");
    found(&kernel("uint x", "").replace("    inside(", "    if (x == 1) { return; }\n    inside("), "return early");
    for called in ["metal::simd_max(x)", "inside(x)", "other(x)"] {
        let source =
            kernel("uint x", helper).replace("    inside(", &format!("    switch(x) {{\n case 1: {{\n y = {called};\n }} }}\n    inside("));
        found(&source, "inside of switch");
    }
}
