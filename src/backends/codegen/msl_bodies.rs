//! Functions of a kernel whose body is written in Metal's language: it takes the place of the one that naga makes of their WGSL.
//!
//! Such a body follows its function in the WGSL, as a comment: `/* metal: NAME`, lines, `*/`. It names the function's parameters and the variables
//! of the module that the WGSL form uses, and calls functions that the WGSL form calls, all as in WGSL. The WGSL form says what it computes, and is what
//! other GPUs run.

use std::ops::Range;

const MARK: &str = "/* metal: ";

/// Whether a character may be in a name.
pub fn in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The first word of a source that may be a name or a number: what stands before it, the word, and what follows.
pub fn first_word(source: &str) -> Option<[&str; 3]> {
    let (before, word) = source.split_at(source.find(in_name)?);
    let (word, after) = word.split_at(word.find(|c| !in_name(c)).unwrap_or(word.len()));
    Some([before, word, after])
}

/// Whether a word behind this is a name of another namespace or of an object.
pub fn is_qualified(before: &str) -> bool {
    before.ends_with('.') || before.ends_with("::")
}

/// The arguments of a call behind its opening bracket, and what follows them from the closing one on, if it closes.
pub fn arguments(source: &str) -> Option<(Vec<&str>, &str)> {
    let (mut depth, mut from, mut found) = (0, 0, vec![]);
    for (i, c) in source.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => {
                found.push(&source[from..i]);
                return Some((found, &source[i..]));
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&source[from..i]);
                from = i + 1;
            }
            _ => {}
        }
    }
    None
}

/// How naga writes a name of a WGSL source: one that ends in a digit gets an underscore.
fn metal_name(name: &str) -> String {
    if name.ends_with(|c: char| c.is_ascii_digit()) { format!("{name}_") } else { name.into() }
}

/// The names of the parameters of a function of a WGSL source.
fn parameters<'t>(wgsl: &'t str, function: &str) -> Option<Vec<&'t str>> {
    let head = format!("fn {function}(");
    let from = wgsl.find(&head)? + head.len();
    let close = wgsl[from..].find(") ->").into_iter().chain(wgsl[from..].find(") {")).min()?;
    let mut depth = 0;
    let at_comma = |c: char| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        c == ',' && depth == 0
    };
    Some(wgsl[from..from + close].split(at_comma).filter_map(|p| p.split_once(':')).map(|p| p.0.trim()).collect())
}

/// A function of a Metal source: the names of its parameters, and where its body lies.
struct Function<'t> {
    parameters: Vec<&'t str>,
    body: Range<usize>,
}

/// Finds a function of naga's source, which writes one parameter a line.
fn function<'t>(source: &'t str, name: &str) -> Option<Function<'t>> {
    let head = format!(" {}(\n", metal_name(name));
    let at = source.match_indices(&head).map(|m| m.0).find(|&at| !source[..at].rsplit('\n').next().unwrap_or("").starts_with(' '))?;
    let from = at + head.len();
    let open = from + source[from..].find(") {\n")?;
    let body = open + 4..open + 4 + source[open + 4..].find("\n}\n")? + 1;
    let last_word = |line: &'t str| line.trim().trim_end_matches(',').rsplit([' ', '&', '*']).next().unwrap_or("");
    Some(Function { parameters: source[from..open].lines().filter(|l| !l.trim().is_empty()).map(last_word).collect(), body })
}

/// What a body's names are in a Metal source.
struct Names<'t> {
    source: &'t str,
    wgsl: &'t str,
    /// The function's parameters in WGSL. In the Metal source, the module's variables that it uses follow them.
    own: Vec<&'t str>,
    function: &'t Function<'t>,
}

impl Names<'_> {
    fn of(&self, word: &str) -> String {
        let (own, others) = self.function.parameters.split_at(self.own.len().min(self.function.parameters.len()));
        match self.own.iter().position(|p| *p == word) {
            Some(n) => own[n].into(),
            None => others.iter().find(|p| **p == metal_name(word)).map_or(word.into(), |p| p.to_string()),
        }
    }

    /// A body, or the arguments of a call in one, with the names of the Metal source.
    fn written(&self, body: &str) -> Result<String, String> {
        let (mut out, mut rest) = (String::new(), body);
        while let Some([before, word, after]) = first_word(rest) {
            out += before;
            rest = after;
            let foreign = is_qualified(before) || word.starts_with(|c: char| c.is_ascii_digit());
            let called = after.strip_prefix('(').filter(|_| !foreign);
            match called.and_then(|c| Some((c, parameters(self.wgsl, word)?, function(self.source, word)?))) {
                // What a function uses of the module follows its arguments.
                Some((called, own, f)) => {
                    let (_, behind) = arguments(called).ok_or_else(|| format!("a call of {word} has no end"))?;
                    let passed = self.written(&called[..called.len() - behind.len()])?;
                    let used: String = f.parameters[own.len()..].iter().map(|p| format!(", {p}")).collect();
                    out += &format!("{}({passed}{used}", metal_name(word));
                    rest = behind;
                }
                None if foreign => out += word,
                None => out += &self.of(word),
            }
        }
        Ok(out + rest)
    }
}

/// Puts the bodies in Metal's language that stand in a WGSL source into its translation.
///
/// # Errors
/// Where there is no such function, or a body does not end.
pub fn with_bodies(mut source: String, wgsl: &str) -> Result<String, String> {
    for (at, _) in wgsl.match_indices(MARK) {
        let (name, body) = wgsl[at + MARK.len()..].split_once('\n').ok_or("a body in Metal's language has no lines")?;
        let (body, _) = body.split_once("*/").ok_or_else(|| format!("the body of {name} in Metal's language has no end"))?;
        let missing = || format!("there is no function {name} for a body in Metal's language");
        let f = function(&source, name).ok_or_else(missing)?;
        let own = parameters(wgsl, name).ok_or_else(missing)?;
        let body = Names { source: &source, wgsl, own, function: &f }.written(body)?;
        let range = f.body.clone();
        source.replace_range(range, &body);
    }
    Ok(if source.contains("mpp::tensor_ops::") { with_tensor_operations(&source) } else { source })
}

/// A source of naga's with what tensor operations need: their headers, and the version of the language that has them, which its first line states.
fn with_tensor_operations(source: &str) -> String {
    const HEADER: &str = "#include <metal_stdlib>\n";
    let [old, new] =
        [super::LANGUAGE_VERSION, super::TENSOR_LANGUAGE_VERSION].map(|(major, minor)| format!("// language: metal{major}.{minor}\n"));
    let headers = format!("{HEADER}{}\n#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n", super::TENSOR_HEADER);
    source.replacen(&old, &new, 1).replacen(HEADER, &headers, 1)
}

/// The WGSL whose functions have no bodies in Metal's language; `None` where none has one.
pub fn without_bodies(wgsl: &str) -> Option<String> {
    wgsl.contains(MARK).then(|| wgsl.replace(MARK, "/* "))
}
