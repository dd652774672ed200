//! The template engine: WGSL files with `#include`, `#if`, `#for` and `#unroll`, and nothing else.
//!
//! A directive is a line of its own whose first word begins with `#`:
//!
//! - `#include "file.wgsl"` puts that file of the library in its place; `#include "file.wgsl" NAME = value, …` with values that its `${NAME}`
//!   have in there besides those of the whole template. A value is a word, an integer, an expression in parentheses, or text in double quotes, which may have commas.
//! - `#if EXPR`, `#elif EXPR`, `#else`, `#endif`: lines that are there if the expression is not zero.
//! - `#for NAME in A..B`, `#endfor`: lines once for each integer from A up to B, which is `${NAME}` in them.
//! - `#unroll` before a line `for (var i = 0u; i < COUNT; i++) {`: the loop's body once for each turn, as a block with `const i = 0u;` at its
//!   start, so that no compiler keeps what it indexes in memory. `#unroll EXPR` leaves the loop as it is where the expression is zero.
//!
//! `${NAME}` stands for the value of that name, everywhere, directives included; `${EXPR}` for that of an expression. What a `${NAME}` stands for may have
//! several lines.
//!
//! A template with parameters (`params!`) begins with their `struct Params` once it is rendered, and reads them as `p.NAME`; rendering refuses a name that
//! is none of theirs. So nothing else may be called `p` there, but in a line that declares a `p: TYPE` of its own, as a function of one line does.
//!
//! An expression is of integers and names (a name need not be in `${}`), `! * / % + - << < <= > >= == != && ||` and parentheses, computed in i64.
//! Text is true if it is not empty.
//!
//! A template that is wrong, or a value that it lacks, is a [`TemplateError`] with file and line. Files are read into nodes once; what is rendered is
//! remembered by template and values, since the layers of a model ask for the same sources again and again.

use super::params::{Field, wgsl_struct};
use crate::quant::FORMATS;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

/// Rendered sources that are remembered.
const MAX_RENDERED: usize = 1024;
/// Files that include each other at most; more do so in a circle.
const MAX_INCLUDE_DEPTH: usize = 16;
/// Turns of a loop at most: more is a mistake.
const MAX_ITERATIONS: i64 = 4096;

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TemplateValue {
    /// An integer; WGSL that needs a suffix writes it: `${N}u`.
    Int(i64),
    /// Text, put in as it is.
    Text(Cow<'static, str>),
}

impl From<u32> for TemplateValue {
    fn from(n: u32) -> TemplateValue {
        TemplateValue::Int(n as i64)
    }
}
impl From<bool> for TemplateValue {
    fn from(b: bool) -> TemplateValue {
        TemplateValue::Int(b as i64)
    }
}
impl From<&'static str> for TemplateValue {
    fn from(s: &'static str) -> TemplateValue {
        TemplateValue::Text(s.into())
    }
}
impl From<String> for TemplateValue {
    fn from(s: String) -> TemplateValue {
        TemplateValue::Text(s.into())
    }
}
impl fmt::Display for TemplateValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TemplateValue::Int(n) => write!(f, "{n}"),
            TemplateValue::Text(s) => f.write_str(s),
        }
    }
}

/// Names and what they stand for; of equal names the last counts.
pub type Values = [(&'static str, TemplateValue)];

/// A mistake in a template, or a value that it lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// The file.
    pub file: &'static str,
    /// Its line, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}
impl std::error::Error for TemplateError {}

type Result<T> = std::result::Result<T, TemplateError>;

/// A place in a file.
#[derive(Clone, Copy, Debug)]
struct Place {
    file: &'static str,
    line: usize,
}

impl Place {
    fn fail<T>(self, message: impl Into<String>) -> Result<T> {
        Err(TemplateError { file: self.file, line: self.line, message: message.into() })
    }
}

/// Lines, or a directive with those that it decides about.
#[derive(Debug)]
enum Node {
    /// Lines that are put in as they are.
    Plain(&'static str),
    /// A line with names to be replaced, or after `#unroll`.
    Line(Place, &'static str),
    /// A file and what names stand for in there.
    Include(Place, String, Vec<(&'static str, &'static str)>),
    /// Conditions and what they guard; `#else` has none.
    If(Vec<(Place, Option<&'static str>, Vec<Node>)>),
    /// A name, its first value and the one after its last, and the lines.
    For(Place, &'static str, [&'static str; 2], Vec<Node>),
    /// Whether the next line's loop is written out.
    Unroll(Place, &'static str),
}

/// Which files this thread rendered, for tests of what is covered.
#[cfg(test)]
pub(crate) mod rendered_files {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    thread_local! {
        pub(crate) static FILES: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
    }
}

/// A WGSL file that is rendered.
pub struct Template {
    file: &'static str,
    text: &'static str,
    fields: &'static [Field],
    library: &'static [(&'static str, &'static str)],
    nodes: OnceLock<Result<Vec<Node>>>,
}

impl Template {
    /// The template `text` of this file, whose name is for messages.
    pub const fn new(file: &'static str, text: &'static str) -> Template {
        Template { file, text, fields: &[], library: &[], nodes: OnceLock::new() }
    }
    /// With the parameters that it may read as `p.NAME`.
    pub const fn params(mut self, fields: &'static [Field]) -> Template {
        self.fields = fields;
        self
    }
    /// With the files that it may include besides the shared ones, which are searched last.
    pub const fn files(mut self, library: &'static [(&'static str, &'static str)]) -> Template {
        self.library = library;
        self
    }

    /// The source with these values.
    ///
    /// # Errors
    /// Where the template is wrong, or lacks a value.
    pub fn render(&'static self, values: &Values) -> Result<Arc<str>> {
        #[cfg(test)]
        rendered_files::FILES.with_borrow_mut(|f| f.insert(self.file));
        type Done = HashMap<(usize, Vec<(&'static str, TemplateValue)>), Arc<str>>;
        static DONE: LazyLock<Mutex<Done>> = LazyLock::new(Mutex::default);
        // A static template is known by its address.
        let key = (std::ptr::from_ref(self) as usize, values.to_vec());
        if let Some(done) = DONE.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(done.clone());
        }
        let mut source = if self.fields.is_empty() { String::new() } else { wgsl_struct(self.fields) };
        source += &self.render_anew(values)?;
        let source: Arc<str> = source.into();
        let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
        if done.len() >= MAX_RENDERED {
            done.clear();
        }
        done.insert(key, source.clone());
        Ok(source)
    }

    /// The source with these values, for a kernel. Where the template is wrong, which a test over all kernels finds, it is a source that no
    /// driver takes, and the error of its compilation names file and line.
    pub fn source(&'static self, values: &Values) -> Cow<'static, str> {
        match self.render(values) {
            Ok(source) => source.to_string().into(),
            Err(e) => format!("template error: {e}\n").into(),
        }
    }

    /// What [`render`](Self::render) remembers, without the struct of the parameters.
    fn render_anew(&self, values: &Values) -> Result<String> {
        let nodes = self.nodes.get_or_init(|| parse(self.file, self.text)).as_ref().map_err(Clone::clone)?;
        let mut r =
            Renderer { template: self, names: values.to_vec(), out: String::with_capacity(2 * self.text.len()), next: None, depth: 0 };
        r.nodes(nodes)?;
        if let Some((place, _)) = r.next {
            return place.fail("no line follows #unroll");
        }
        write_out_loops(r.out)
    }
}

/// A file's nodes.
fn parse(file: &'static str, text: &'static str) -> Result<Vec<Node>> {
    let mut lines = text.split_inclusive('\n').enumerate().map(|(n, line)| (Place { file, line: n + 1 }, line)).peekable();
    let (nodes, end) = block(&mut lines)?;
    match end {
        Some((place, word, _)) => place.fail(format!("#{word} without its beginning")),
        None => Ok(nodes),
    }
}

/// The directive that ended a block: its place, its word, and the rest of its line.
type End = Option<(Place, &'static str, &'static str)>;

/// Nodes up to a directive that ends them, or the end of the file.
fn block(lines: &mut dyn Iterator<Item = (Place, &'static str)>) -> Result<(Vec<Node>, End)> {
    let mut out = Vec::new();
    let mut after_unroll = false;
    while let Some((place, line)) = lines.next() {
        let Some(directive) = line.trim().strip_prefix('#') else {
            if after_unroll || has_names(line) {
                out.push(Node::Line(place, line));
            } else {
                out.push(Node::Plain(line));
            }
            after_unroll = false;
            continue;
        };
        let (word, rest) = directive.split_once(char::is_whitespace).unwrap_or((directive, ""));
        let rest = rest.trim();
        if after_unroll {
            return place.fail("no line follows #unroll");
        }
        match word {
            "include" => out.push(include(place, rest)?),
            "if" => out.push(conditional(place, rest, lines)?),
            "for" => out.push(repeated(place, rest, lines)?),
            "unroll" => {
                out.push(Node::Unroll(place, rest));
                after_unroll = true;
            }
            "elif" | "else" | "endif" | "endfor" => return Ok((out, Some((place, word, rest)))),
            _ => return place.fail(format!("#{word} is not a directive; there are #include, #if, #for and #unroll")),
        }
    }
    Ok((out, None))
}

/// Whether a line may have something to replace.
fn has_names(line: &str) -> bool {
    line.contains("${") || line.contains("p.")
}

fn include(place: Place, rest: &'static str) -> Result<Node> {
    let quoted = rest.strip_prefix('"').and_then(|r| r.split_once('"'));
    let Some((file, list)) = quoted else { return place.fail("#include expects a file in double quotes") };
    let mut values = Vec::new();
    let mut in_text = false;
    let at_comma = |c: char| {
        in_text ^= c == '"';
        c == ',' && !in_text
    };
    for pair in list.split(at_comma).map(str::trim).filter(|p| !p.is_empty()) {
        match pair.split_once('=').map(|(name, value)| (name.trim(), value.trim())) {
            Some((name, value)) if is_name(name) && !value.is_empty() => values.push((name, value)),
            _ => return place.fail(format!("`{pair}`: #include expects NAME = value after its file")),
        }
    }
    Ok(Node::Include(place, file.to_string(), values))
}

fn conditional(start: Place, rest: &'static str, lines: &mut dyn Iterator<Item = (Place, &'static str)>) -> Result<Node> {
    let mut branches = Vec::new();
    let (mut place, mut condition) = (start, Some(rest));
    loop {
        let (nodes, end) = block(lines)?;
        let has_else = condition.is_none();
        branches.push((place, condition, nodes));
        match end {
            Some((_, "endif", _)) => return Ok(Node::If(branches)),
            Some((at, "elif", rest)) if !has_else => (place, condition) = (at, Some(rest)),
            Some((at, "else", _)) if !has_else => (place, condition) = (at, None),
            Some((at, word, _)) => return at.fail(format!("#{word} in the #if of line {}", start.line)),
            None => return start.fail("#if without #endif"),
        }
    }
}

fn repeated(start: Place, rest: &'static str, lines: &mut dyn Iterator<Item = (Place, &'static str)>) -> Result<Node> {
    let head = rest.split_once(" in ").and_then(|(name, range)| Some((name.trim(), range.split_once("..")?)));
    let Some((name, (from, to))) = head.filter(|h| is_name(h.0)) else { return start.fail("#for expects NAME in A..B") };
    match block(lines)? {
        (nodes, Some((_, "endfor", _))) => Ok(Node::For(start, name, [from, to], nodes)),
        (_, Some((at, word, _))) => at.fail(format!("#{word} in the #for of line {}", start.line)),
        (_, None) => start.fail("#for without #endfor"),
    }
}

fn is_name(s: &str) -> bool {
    s.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && s.bytes().all(is_name_byte)
}

fn is_name_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

/// Before a loop that is written out: this, the name, a space, the number of turns, and this again.
const MARK: char = '\u{1}';

/// What is being rendered.
struct Renderer<'a> {
    template: &'a Template,
    names: Vec<(&'static str, TemplateValue)>,
    out: String,
    /// Whether the next line's loop is written out, and which directive says so.
    next: Option<(Place, bool)>,
    /// Files that are being included.
    depth: usize,
}

impl Renderer<'_> {
    fn nodes(&mut self, nodes: &[Node]) -> Result<()> {
        nodes.iter().try_for_each(|n| self.node(n))
    }

    fn node(&mut self, node: &Node) -> Result<()> {
        match node {
            Node::Plain(text) => self.out.push_str(text),
            Node::Line(place, line) => self.line(*place, line)?,
            Node::Include(place, file, values) => self.include(*place, file, values)?,
            Node::If(branches) => {
                for (place, condition, nodes) in branches {
                    if condition.map_or(Ok(true), |c| self.is_true(*place, c))? {
                        return self.nodes(nodes);
                    }
                }
            }
            Node::For(place, name, [from, to], nodes) => {
                let (from, to) = (self.integer(*place, from)?, self.integer(*place, to)?);
                if to.saturating_sub(from) > MAX_ITERATIONS {
                    return place.fail(format!("{from}..{to} are too many turns"));
                }
                for n in from..to {
                    self.names.push((name, TemplateValue::Int(n)));
                    self.nodes(nodes)?;
                    self.names.pop();
                }
            }
            Node::Unroll(place, condition) => {
                let on = condition.is_empty() || self.is_true(*place, condition)?;
                self.next = Some((*place, on));
            }
        }
        Ok(())
    }

    fn include(&mut self, place: Place, file: &str, values: &[(&'static str, &'static str)]) -> Result<()> {
        let file = self.replaced(place, file)?;
        let formats = FORMATS.into_iter().filter_map(|f| f.coded().map(|c| &c.wgsl));
        let found = self.template.library.iter().chain(super::LIBRARY).chain(formats).find(|(name, _)| *name == file);
        let Some(&(file, text)) = found else { return place.fail(format!("there is no file {file} to include")) };
        if self.depth == MAX_INCLUDE_DEPTH {
            return place.fail(format!("{file} includes itself"));
        }
        let before = self.names.len();
        // All of them are found before one of them counts.
        let found: Vec<_> = values.iter().map(|(name, v)| Ok((*name, self.argument(place, v)?))).collect::<Result<_>>()?;
        self.names.extend(found);
        self.depth += 1;
        match &*parsed(file, text) {
            Ok(nodes) => self.nodes(nodes)?,
            Err(e) => return Err(e.clone()),
        }
        self.depth -= 1;
        self.names.truncate(before);
        Ok(())
    }

    /// What a name stands for in an included file: text in quotes, what another name stands for here, an expression in parentheses, an integer, or a
    /// word as it is.
    fn argument(&self, place: Place, text: &str) -> Result<TemplateValue> {
        if let Some(inside) = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
            return Ok(TemplateValue::Text(self.replaced(place, inside)?.into()));
        }
        let text = self.replaced(place, text)?;
        if text.starts_with('(') && text.ends_with(')') {
            return self.integer(place, &text).map(TemplateValue::Int);
        }
        Ok(text.parse().map_or_else(|_| TemplateValue::Text(text.into()), TemplateValue::Int))
    }

    fn value(&self, name: &str) -> Option<&TemplateValue> {
        self.names.iter().rev().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// A text with what its `${NAME}` stand for.
    fn replaced(&self, place: Place, text: &str) -> Result<String> {
        let mut out = String::with_capacity(text.len() + 32);
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            out += before;
            let Some((name, after)) = after.split_once('}') else { return place.fail("${ without }") };
            match self.value(name.trim()) {
                Some(TemplateValue::Int(n)) => out += &n.to_string(),
                Some(TemplateValue::Text(s)) => out += s,
                None if is_name(name.trim()) => return place.fail(format!("{name} has no value")),
                None => out += &self.integer(place, name)?.to_string(),
            }
            rest = after;
        }
        Ok(out + rest)
    }

    fn line(&mut self, place: Place, line: &str) -> Result<()> {
        let line = self.replaced(place, line)?;
        if let Some((directive, on)) = self.next.take()
            && on
        {
            let Some((at, name, count)) = loop_of(&line) else {
                return directive.fail("#unroll expects a line with `for (var i = 0u; i < COUNT; i++) {` after it");
            };
            let turns = self.integer(place, count)?;
            if !(0..=MAX_ITERATIONS).contains(&turns) {
                return place.fail(format!("a loop of {turns} turns"));
            }
            let marked = format!("{}{MARK}{name} {turns}{MARK}{}", &line[..at], &line[at..]);
            return self.append(place, &marked);
        }
        self.append(place, &line)
    }

    /// Appends what a line has become, which may be several lines.
    fn append(&mut self, place: Place, text: &str) -> Result<()> {
        self.out.push_str(text);
        text.lines().try_for_each(|line| self.check_parameters(place, line))
    }

    /// Fails where a line reads a parameter that there is not.
    fn check_parameters(&self, place: Place, line: &str) -> Result<()> {
        let (fields, code) = (self.template.fields, line.split("//").next().unwrap_or_default());
        if fields.is_empty() || declares_p(code) {
            return Ok(());
        }
        for (at, _) in code.match_indices("p.") {
            let is_parameter = !code[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.');
            let name = code[at + 2..].split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap_or_default();
            if is_parameter && !fields.iter().any(|f| f.is(name)) {
                return place.fail(format!("the parameters have no field `{name}`; they are {}", list(fields)));
            }
        }
        Ok(())
    }

    fn is_true(&self, place: Place, expression: &str) -> Result<bool> {
        match self.value(expression.trim()) {
            Some(TemplateValue::Text(s)) => Ok(!s.is_empty()),
            _ => Ok(self.integer(place, expression)? != 0),
        }
    }

    fn integer(&self, place: Place, expression: &str) -> Result<i64> {
        let expression = self.replaced(place, expression)?;
        Expression { text: &expression, rest: expression.trim_start(), place, names: self }.whole()
    }
}

/// Whether a line has a `p: TYPE` of its own.
fn declares_p(line: &str) -> bool {
    line.match_indices("p:").any(|(at, _)| !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.'))
}

fn list(fields: &[Field]) -> String {
    fields.iter().map(Field::to_string).collect::<Vec<_>>().join(", ")
}

/// The nodes of a file, or what is wrong with it.
type Parsed = Arc<Result<Vec<Node>>>;

/// The nodes of a file of a library, read once.
fn parsed(file: &'static str, text: &'static str) -> Parsed {
    static FILES: LazyLock<Mutex<HashMap<usize, Parsed>>> = LazyLock::new(Mutex::default);
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    files.entry(text.as_ptr() as usize).or_insert_with(|| Arc::new(parse(file, text))).clone()
}

/// Where in a line the loop stands, its variable, and its count.
fn loop_of(line: &str) -> Option<(usize, &str, &str)> {
    let at = line.find("for (var ")?;
    let (name, rest) = line[at + 9..].split_once(" = 0u; ")?;
    let (count, rest) = rest.strip_prefix(name)?.strip_prefix(" < ")?.split_once("; ")?;
    rest.strip_prefix(name)?.strip_prefix("++) {").map(|_| (at, name, count))
}

/// A source with its marked loops written out, the innermost first: a body must not be copied before its own loops are.
fn write_out_loops(mut text: String) -> Result<String> {
    while let Some(end) = text.rfind(MARK) {
        let Some(start) = text[..end].rfind(MARK) else { break };
        let head = text[start + 1..end].split_once(' ').and_then(|(name, n)| Some((name.to_string(), n.parse::<u32>().ok()?)));
        let body = text[end..].find('{').and_then(|open| Some((end + open, closing(&text, end + open)?)));
        let (Some((name, turns)), Some((open, close))) = (head, body) else {
            let place = Place { file: "", line: text[..start].lines().count() };
            return place.fail("the loop after #unroll does not end; the line is one of the rendered source");
        };
        let body = &text[open + 1..close];
        let copies: String = (0..turns).map(|n| format!("{{ const {name} = {n}u;{body}}}\n")).collect();
        text.replace_range(start..=close, &copies);
    }
    Ok(text)
}

/// The brace that closes the one at `open`; those in comments do not count.
fn closing(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0usize;
    let mut comment = false;
    let bytes = text.as_bytes();
    for (i, &b) in bytes.iter().enumerate().skip(open) {
        comment = b != b'\n' && (comment || b == b'/' && bytes.get(i + 1) == Some(&b'/'));
        match b {
            b'{' if !comment => depth += 1,
            b'}' if !comment => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return Some(i);
        }
    }
    None
}

/// An expression that is being read.
struct Expression<'a> {
    text: &'a str,
    rest: &'a str,
    place: Place,
    names: &'a Renderer<'a>,
}

/// Operators by how they bind, loosest first; longer ones before those that they begin with.
const OPERATORS: [&[&str]; 7] = [&["||"], &["&&"], &["==", "!="], &["<=", ">=", "<", ">"], &["<<"], &["+", "-"], &["*", "/", "%"]];

impl Expression<'_> {
    fn whole(mut self) -> Result<i64> {
        let value = self.level(0)?;
        if self.rest.is_empty() { Ok(value) } else { self.wrong() }
    }
    fn wrong<T>(&self) -> Result<T> {
        self.place.fail(format!(
            "`{}` is not an expression{}",
            self.text.trim(),
            if self.rest.is_empty() { String::new() } else { format!(": at `{}`", self.rest) }
        ))
    }
    fn take(&mut self, token: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(token) else { return false };
        self.rest = rest.trim_start();
        true
    }
    /// Operands joined by operators of this level or tighter ones.
    fn level(&mut self, level: usize) -> Result<i64> {
        let Some(operators) = OPERATORS.get(level) else { return self.operand() };
        let mut left = self.level(level + 1)?;
        while let Some(op) = operators.iter().find(|op| self.take(op)) {
            let right = self.level(level + 1)?;
            let computed = match *op {
                "||" => Some((left != 0 || right != 0) as i64),
                "&&" => Some((left != 0 && right != 0) as i64),
                "==" => Some((left == right) as i64),
                "!=" => Some((left != right) as i64),
                "<=" => Some((left <= right) as i64),
                ">=" => Some((left >= right) as i64),
                "<" => Some((left < right) as i64),
                ">" => Some((left > right) as i64),
                "<<" => u32::try_from(right).ok().and_then(|n| 1i64.checked_shl(n)).and_then(|n| left.checked_mul(n)),
                "+" => left.checked_add(right),
                "-" => left.checked_sub(right),
                "*" => left.checked_mul(right),
                "/" => left.checked_div(right),
                _ => left.checked_rem(right),
            };
            let Some(value) = computed else { return self.place.fail(format!("`{}`: {left} {op} {right} has no value", self.text.trim())) };
            left = value;
        }
        Ok(left)
    }
    fn operand(&mut self) -> Result<i64> {
        if self.take("!") {
            return Ok((self.operand()? == 0) as i64);
        }
        if self.take("-") {
            return self.operand().map(i64::wrapping_neg);
        }
        if self.take("(") {
            let value = self.level(0)?;
            return if self.take(")") { Ok(value) } else { self.wrong() };
        }
        let len = self.rest.bytes().take_while(|b| is_name_byte(*b)).count();
        let (word, rest) = self.rest.split_at(len);
        // WGSL's integers may say that they have no sign.
        if let Ok(value) = word.strip_suffix('u').unwrap_or(word).parse() {
            self.rest = rest.trim_start();
            return Ok(value);
        }
        match self.names.value(word) {
            Some(TemplateValue::Int(n)) => {
                self.rest = rest.trim_start();
                Ok(*n)
            }
            Some(TemplateValue::Text(_)) => self.place.fail(format!("{word} is text, not an integer")),
            None if is_name(word) => self.place.fail(format!("{word} has no value")),
            None => self.wrong(),
        }
    }
}

#[cfg(test)]
mod tests;
