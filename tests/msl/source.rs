//! A kernel in Metal's shading language as C++: what the dialect has and C++ has not is rewritten, and a function is added that takes the
//! kernel's arguments from a table.

use super::traps::trap;
use std::fmt::Write;

/// Headers that sources include besides those of every source: name and content.
pub const HEADERS: [(&str, &str); 2] = [
    ("metal_tensor", include_str!("include/metal_tensor")),
    (
        "MetalPerformancePrimitives/MetalPerformancePrimitives.h",
        include_str!("include/MetalPerformancePrimitives/MetalPerformancePrimitives.h"),
    ),
];

/// A parameter of a kernel: a buffer with its index and whether the kernel may write it, or something that the hardware knows.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameter {
    Buffer { index: usize, written: bool, name: String },
    Builtin,
}

/// A kernel as C++.
pub struct Source {
    /// A namespace of its own, to be compiled behind `metal_stdlib` with others, and behind the headers that it includes besides.
    pub cpp: String,
    pub parameters: Vec<Parameter>,
    /// Whether its threads wait for each other, so that their order could matter.
    pub meets: bool,
}

/// Splits at commas that stand in no brackets.
fn parts(source: &str) -> Vec<&str> {
    let (mut depth, mut start, mut out) = (0i32, 0, vec![]);
    for (i, c) in source.char_indices() {
        match c {
            '(' | '[' | '<' | '{' => depth += 1,
            ')' | ']' | '>' | '}' => depth -= 1,
            ',' if depth == 0 => {
                out.push(&source[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(&source[start..]);
    out.into_iter().map(str::trim).filter(|p| !p.is_empty()).collect()
}

/// The parameters of a kernel, each as it is written.
fn parameters<'t>(source: &'t str, entry: &str) -> Result<Vec<&'t str>, String> {
    let head = format!("kernel void {entry}(");
    let from = source.find(&head).ok_or_else(|| format!("no kernel {entry} in the source"))? + head.len();
    let mut depth = 1;
    let close = source[from..].char_indices().find_map(|(i, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        (depth == 0).then_some(from + i)
    });
    Ok(parts(&source[from..close.ok_or("the kernel's parameters do not end")?]))
}

/// What is passed for a parameter, from the thread `t` and the table of buffers `b`.
fn argument(source: &str) -> Result<(Parameter, String), String> {
    let (head, attribute) = source.split_once("[[").ok_or_else(|| format!("parameter {source:?} has no attribute"))?;
    let (head, attribute) = (head.trim(), attribute.trim_end_matches("]]").trim());
    let at = head.rfind(|c: char| !(c.is_alphanumeric() || c == '_')).map_or(0, |p| p + 1);
    let (kind, name) = (head[..at].trim(), &head[at..]);
    if let Some(index) = attribute.strip_prefix("buffer(").and_then(|a| a.trim_end_matches(')').parse::<usize>().ok()) {
        let target = kind.trim_end_matches(['&', '*']).trim();
        let cast = format!("({target}*)b[{index}]");
        let written = target.contains("device") && !target.contains("const");
        let parameter = Parameter::Buffer { index, written, name: name.into() };
        return Ok((parameter, if kind.ends_with('*') { cast } else { format!("*{cast}") }));
    }
    let field = match attribute {
        "thread_position_in_grid" => {
            ["t->group[0] * t->size[0] + t->at[0]", "t->group[1] * t->size[1] + t->at[1]", "t->group[2] * t->size[2] + t->at[2]"]
        }
        "thread_position_in_threadgroup" => ["t->at[0]", "t->at[1]", "t->at[2]"],
        "threadgroup_position_in_grid" => ["t->group[0]", "t->group[1]", "t->group[2]"],
        "threads_per_threadgroup" => ["t->size[0]", "t->size[1]", "t->size[2]"],
        "threads_per_grid" => ["t->groups[0] * t->size[0]", "t->groups[1] * t->size[1]", "t->groups[2] * t->size[2]"],
        "threadgroups_per_grid" => ["t->groups[0]", "t->groups[1]", "t->groups[2]"],
        "thread_index_in_threadgroup" => ["t->index", "", ""],
        "thread_index_in_simdgroup" => ["t->lane", "", ""],
        "simdgroup_index_in_threadgroup" => ["t->simd", "", ""],
        "threads_per_simdgroup" | "thread_execution_width" => ["32u", "", ""],
        "simdgroups_per_threadgroup" => ["(t->size[0] * t->size[1] * t->size[2] + 31u) / 32u", "", ""],
        other => return Err(format!("parameter {source:?}: {other:?} is not known")),
    };
    let count = kind.chars().last().and_then(|c| c.to_digit(10)).filter(|n| (2..=3).contains(n)).unwrap_or(1) as usize;
    Ok((Parameter::Builtin, format!("{kind}({})", field[..count].join(", "))))
}

/// A declaration of threadgroup memory in a kernel's body: type, name, and the sizes of an array.
fn shared(line: &str) -> Option<(&str, &str, &str)> {
    let declaration = line.strip_prefix(' ')?.trim_start().strip_prefix("threadgroup ")?.strip_suffix(';')?;
    if declaration.contains(['(', '&', '*', '=']) {
        return None;
    }
    let (head, sizes) = declaration.split_at(declaration.find('[').unwrap_or(declaration.len()));
    let (kind, name) = head.trim().rsplit_once(' ')?;
    Some((kind, name, sizes))
}

/// Comparisons of vectors that become numbers: clang's give 0 and −1, Metal's false and true. `static_cast<uint4>(a < b)` gets a `bool4` inside.
fn booleans(source: &str) -> String {
    const COMPARISONS: [&str; 6] = [" == ", " != ", " < ", " > ", " <= ", " >= "];
    let (mut out, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(at) = rest.find("static_cast<metal::") {
        let (before, cast) = rest.split_at(at);
        out += before;
        let Some(open) = cast.find(">(").map(|p| p + 2) else { break };
        let size = cast[..open - 2].chars().last().filter(|c| ('2'..='4').contains(c));
        let (mut depth, mut compares, mut close) = (1i32, false, None);
        for (i, c) in cast[open..].char_indices() {
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth -= 1,
                ' ' if depth == 1 => compares |= COMPARISONS.iter().any(|o| cast[open + i..].starts_with(o)),
                _ => {}
            }
            if depth == 0 {
                close = Some(open + i);
                break;
            }
        }
        match (size, compares, close) {
            (Some(n), true, Some(close)) => {
                let _ = write!(out, "{}metal::bool{n}({})", &cast[..open], &cast[open..close]);
                rest = &cast[close..];
            }
            _ => {
                out += &cast[..open];
                rest = &cast[open..];
            }
        }
    }
    out + rest
}

/// The kernel `entry` of a source as C++; its functions end in `key`. A source that Apple's compiler is known to get wrong is refused.
pub fn cpp(source: &str, entry: &str, key: &str) -> Result<Source, String> {
    if let Some(trap) = trap(source, entry) {
        return Err(trap);
    }
    let arguments = parameters(source, entry)?.into_iter().map(argument).collect::<Result<Vec<_>, _>>()?;
    let memory: Vec<_> = source.lines().filter_map(shared).collect();
    // Those that are not compiled before: they declare their names for all.
    let headers =
        source.lines().filter(|line| line.starts_with("#include") && HEADERS.iter().any(|h| line.ends_with(&format!("<{}>", h.0))));
    let mut out: String = headers.flat_map(|line| [line, "\n"]).collect();
    let _ = writeln!(out, "namespace k{key} {{");
    for line in source.lines() {
        if line.starts_with("#include") {
            continue;
        }
        if line.contains("kernel void ") {
            // Where each declaration of threadgroup memory lies in the memory of the group.
            out += "constexpr unsigned tl_at0 = 0;\n";
            for (n, (kind, _, sizes)) in memory.iter().enumerate() {
                let _ = writeln!(out, "typedef {kind} tl_type{n}{sizes};");
                let _ = writeln!(out, "constexpr unsigned tl_at{} = (tl_at{n} + sizeof(tl_type{n}) + 15) / 16 * 16;", n + 1);
            }
        }
        match memory.iter().position(|m| shared(line) == Some(*m)) {
            Some(n) => {
                let _ = writeln!(out, "tl_type{n}& {} = *(tl_type{n}*)(tl_room() + tl_at{n});", memory[n].1);
            }
            // naga writes arrays of unknown length with one element.
            None if line.starts_with("typedef ") && line.ends_with("[1];") => {
                let _ = writeln!(out, "{}[1 << 24];", &line[..line.len() - 4]);
            }
            None => {
                out += line;
                out.push('\n');
            }
        }
    }
    let passed: Vec<&str> = arguments.iter().map(|a| a.1.as_str()).collect();
    let visible = "extern \"C\" __attribute__((visibility(\"default\")))";
    let _ = writeln!(out, "{visible} void tl_entry_{key}(const tl_thread* t, void* const* b) {{ {entry}({}); }}", passed.join(", "));
    let _ = writeln!(out, "{visible} unsigned tl_bytes_{key}() {{ return tl_at{}; }}\n}}", memory.len());
    let meets = ["_barrier(", "simd_", "simdgroup_"].iter().any(|word| source.contains(word));
    Ok(Source { cpp: booleans(&out), parameters: arguments.into_iter().map(|a| a.0).collect(), meets })
}
