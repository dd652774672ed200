//! The syntax tree of a template, and its parser.

use std::sync::Arc;

use super::lexer::{Token, tokens};
use super::meter::Res;

/// Trees deeper than this are refused: running and dropping them recurses.
const MAX_DEPTH: u16 = 120;

pub(crate) type Body = Vec<Stmt>;

pub(crate) enum Stmt {
    Text(Arc<str>),
    Output(Expr),
    If(Vec<(Expr, Body)>, Body),
    For { targets: Vec<Arc<str>>, iterable: Expr, keep: Option<Expr>, body: Body, otherwise: Body },
    Set(Target, Expr),
    SetBlock(Target, Vec<Filter>, Body),
    FilterBlock(Vec<Filter>, Body),
    With(Vec<(Arc<str>, Expr)>, Body),
    Macro(Arc<Macro>),
    Do(Expr),
    Break,
    Continue,
}

/// What `set` writes to.
pub(crate) enum Target {
    Names(Vec<Arc<str>>),
    Attribute(Arc<str>, Arc<str>),
}

pub(crate) struct Macro {
    pub(crate) name: Arc<str>,
    pub(crate) parameters: Vec<(Arc<str>, Option<Expr>)>,
    pub(crate) body: Body,
}

/// A filter or test after a value: its name and arguments.
pub(crate) struct Filter {
    pub(crate) name: Arc<str>,
    pub(crate) args: Vec<Arg>,
}

pub(crate) struct Arg {
    pub(crate) name: Option<Arc<str>>,
    pub(crate) value: Expr,
}

pub(crate) struct Expr {
    pub(crate) kind: NodeKind,
    depth: u16,
}

pub(crate) enum NodeKind {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Arc<str>),
    Name(Arc<str>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Attribute(Box<Expr>, Arc<str>),
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, [Option<Box<Expr>>; 3]),
    Call(Box<Expr>, Vec<Arg>),
    Filter(Box<Expr>, Filter),
    /// The flag: negated.
    Test(Box<Expr>, Filter, bool),
    Not(Box<Expr>),
    Minus(Box<Expr>),
    Plus(Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    Compare(Box<Expr>, Vec<(&'static str, Expr)>),
    Choice(Box<Expr>, Box<Expr>, Option<Box<Expr>>),
}

/// Parses a template. The error names the line.
pub(crate) fn parse(source: &str) -> Res<Body> {
    let tokens = tokens(source)?;
    let mut parser = Parser { tokens: &tokens, at: 0, depth: 0, loops: 0 };
    let body = parser.body(&[]).and_then(|(body, _)| match parser.peek() {
        Token::End => Ok(body),
        _ => Err("something is left over".into()),
    });
    body.map_err(|message| format!("line {}: {message}", parser.tokens[parser.at.min(tokens.len() - 1)].1))
}

struct Parser<'a> {
    tokens: &'a [(Token, u32)],
    at: usize,
    depth: u16,
    loops: usize,
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).map_or(&Token::End, |t| &t.0)
    }

    fn ahead(&self, n: usize) -> &Token {
        self.tokens.get(self.at + n).map_or(&Token::End, |t| &t.0)
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at = (self.at + 1).min(self.tokens.len());
        token
    }

    fn take(&mut self, token: &Token) -> bool {
        let found = self.peek() == token;
        self.at += found as usize;
        found
    }

    fn sign(&mut self, sign: &'static str) -> bool {
        self.take(&Token::Sign(sign))
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Name(name) if &**name == word)
    }

    fn word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += found as usize;
        found
    }

    fn expect(&mut self, token: Token) -> Res<()> {
        if self.take(&token) { Ok(()) } else { Err(format!("{token:?} expected, found {:?}", self.peek())) }
    }

    fn name(&mut self) -> Res<Arc<str>> {
        match self.next() {
            Token::Name(name) => Ok(name),
            other => Err(format!("a name expected, found {other:?}")),
        }
    }

    fn deeper(&mut self) -> Res<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err("it nests too deep".into()) } else { Ok(()) }
    }

    /// Statements up to a block that starts with one of `ends`, whose name is taken.
    fn body(&mut self, ends: &[&str]) -> Res<(Body, String)> {
        self.deeper()?;
        let mut body = Vec::new();
        let end = loop {
            match self.next() {
                Token::Text(text) => body.push(Stmt::Text(text)),
                Token::OutputStart => {
                    let value = self.tuple()?;
                    self.expect(Token::OutputEnd)?;
                    body.push(Stmt::Output(value));
                }
                Token::BlockStart => {
                    let word = self.name()?;
                    if ends.contains(&&*word) {
                        break word.to_string();
                    }
                    body.extend(self.statement(&word)?);
                }
                Token::End if ends.is_empty() => break String::new(),
                _ => return Err(format!("'{}' expected", ends.join("' or '"))),
            }
        };
        self.depth -= 1;
        Ok((body, end))
    }

    fn block_end(&mut self) -> Res<()> {
        self.expect(Token::BlockEnd)
    }

    /// A body and the end of its closing block.
    fn closed(&mut self, end: &str) -> Res<Body> {
        let (body, _) = self.body(&[end])?;
        // `{% endmacro name %}` is allowed.
        if matches!(self.peek(), Token::Name(_)) {
            self.next();
        }
        self.block_end()?;
        Ok(body)
    }

    fn statement(&mut self, word: &str) -> Res<Option<Stmt>> {
        Ok(Some(match word {
            "if" => self.conditional()?,
            "for" => self.for_loop()?,
            "set" => self.set()?,
            "macro" => {
                let name = self.name()?;
                self.expect(Token::Sign("("))?;
                let mut parameters = Vec::new();
                while !self.sign(")") {
                    let parameter = self.name()?;
                    let default = if self.sign("=") { Some(self.expression()?) } else { None };
                    parameters.push((parameter, default));
                    if !self.sign(",") && self.peek() != &Token::Sign(")") {
                        return Err("',' or ')' expected among the parameters".into());
                    }
                }
                self.block_end()?;
                let loops = std::mem::take(&mut self.loops);
                let body = self.closed("endmacro")?;
                self.loops = loops;
                Stmt::Macro(Arc::new(Macro { name, parameters, body }))
            }
            "filter" => {
                let filters = self.filters_after_name()?;
                self.block_end()?;
                Stmt::FilterBlock(filters, self.closed("endfilter")?)
            }
            "with" => {
                let mut names = Vec::new();
                while self.peek() != &Token::BlockEnd {
                    let name = self.name()?;
                    self.expect(Token::Sign("="))?;
                    names.push((name, self.expression()?));
                    self.sign(",");
                }
                self.block_end()?;
                Stmt::With(names, self.closed("endwith")?)
            }
            "do" => {
                let value = self.tuple()?;
                self.block_end()?;
                Stmt::Do(value)
            }
            "break" | "continue" if self.loops > 0 => {
                self.block_end()?;
                if word == "break" { Stmt::Break } else { Stmt::Continue }
            }
            // Marks what the assistant wrote, for training masks; it prints its body.
            "generation" => {
                self.block_end()?;
                let body = self.closed("endgeneration")?;
                Stmt::With(Vec::new(), body)
            }
            "include" | "import" | "from" | "extends" => return Err(format!("'{word}' is refused: a chat template is one file")),
            other => return Err(format!("the block '{other}' is unknown here")),
        }))
    }

    fn conditional(&mut self) -> Res<Stmt> {
        let mut branches = Vec::new();
        let mut condition = self.tuple()?;
        loop {
            self.block_end()?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            branches.push((condition, body));
            match &*end {
                "elif" => condition = self.tuple()?,
                "else" => {
                    self.block_end()?;
                    return Ok(Stmt::If(branches, self.closed("endif")?));
                }
                _ => {
                    self.block_end()?;
                    return Ok(Stmt::If(branches, Vec::new()));
                }
            }
        }
    }

    fn for_loop(&mut self) -> Res<Stmt> {
        let bracket = self.sign("(");
        let mut targets = vec![self.name()?];
        while self.sign(",") {
            targets.push(self.name()?);
        }
        if bracket {
            self.expect(Token::Sign(")"))?;
        }
        if !self.word("in") {
            return Err("'in' expected".into());
        }
        let iterable = self.tuple_of(Parser::alternative)?;
        let keep = if self.word("if") { Some(self.expression()?) } else { None };
        if self.is_word("recursive") {
            return Err("recursive loops are not supported".into());
        }
        self.block_end()?;
        self.loops += 1;
        let (body, end) = self.body(&["else", "endfor"])?;
        self.loops -= 1;
        self.block_end()?;
        let otherwise = if end == "else" { self.closed("endfor")? } else { Vec::new() };
        Ok(Stmt::For { targets, iterable, keep, body, otherwise })
    }

    fn set(&mut self) -> Res<Stmt> {
        let first = self.name()?;
        let target = if self.sign(".") {
            Target::Attribute(first, self.name()?)
        } else {
            let mut names = vec![first];
            while self.sign(",") {
                names.push(self.name()?);
            }
            Target::Names(names)
        };
        if self.sign("=") {
            let value = self.tuple()?;
            self.block_end()?;
            return Ok(Stmt::Set(target, value));
        }
        let filters = if self.sign("|") { self.filters_after_name()? } else { Vec::new() };
        self.block_end()?;
        Ok(Stmt::SetBlock(target, filters, self.closed("endset")?))
    }

    /// `name(args) | name …`, the first bar already taken.
    fn filters_after_name(&mut self) -> Res<Vec<Filter>> {
        let mut filters = Vec::new();
        loop {
            filters.push(self.filter()?);
            if !self.sign("|") {
                return Ok(filters);
            }
        }
    }

    fn filter(&mut self) -> Res<Filter> {
        let name = self.name()?;
        let args = if self.sign("(") { self.args()? } else { Vec::new() };
        Ok(Filter { name, args })
    }

    fn node(&self, kind: NodeKind) -> Res<Expr> {
        let depth = 1 + kind.children_depth();
        if depth > MAX_DEPTH { Err("an expression nests too deep".into()) } else { Ok(Expr { kind, depth }) }
    }

    /// Expressions with commas between them are a tuple.
    fn tuple(&mut self) -> Res<Expr> {
        self.tuple_of(Parser::expression)
    }

    fn tuple_of(&mut self, part: fn(&mut Self) -> Res<Expr>) -> Res<Expr> {
        let first = part(self)?;
        if self.peek() != &Token::Sign(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.sign(",") {
            if matches!(self.peek(), Token::Sign(")") | Token::BlockEnd | Token::OutputEnd) {
                break;
            }
            items.push(part(self)?);
        }
        self.node(NodeKind::Tuple(items))
    }

    fn expression(&mut self) -> Res<Expr> {
        self.deeper()?;
        let mut value = self.alternative()?;
        while self.word("if") {
            let condition = self.alternative()?;
            let otherwise = if self.word("else") { Some(Box::new(self.expression()?)) } else { None };
            value = self.node(NodeKind::Choice(Box::new(condition), Box::new(value), otherwise))?;
        }
        self.depth -= 1;
        Ok(value)
    }

    fn alternative(&mut self) -> Res<Expr> {
        let mut left = self.conjunction()?;
        while self.word("or") {
            let right = self.conjunction()?;
            left = self.node(NodeKind::Or(Box::new(left), Box::new(right)))?;
        }
        Ok(left)
    }

    fn conjunction(&mut self) -> Res<Expr> {
        let mut left = self.negation()?;
        while self.word("and") {
            let right = self.negation()?;
            left = self.node(NodeKind::And(Box::new(left), Box::new(right)))?;
        }
        Ok(left)
    }

    fn negation(&mut self) -> Res<Expr> {
        if self.word("not") {
            self.deeper()?;
            let value = self.negation()?;
            self.depth -= 1;
            return self.node(NodeKind::Not(Box::new(value)));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Res<Expr> {
        let left = self.binary(0)?;
        let mut others = Vec::new();
        loop {
            let op = match self.peek() {
                Token::Sign(op @ ("==" | "!=" | "<" | ">" | "<=" | ">=")) => *op,
                Token::Name(name) if &**name == "in" => "in",
                Token::Name(name) if &**name == "not" && matches!(self.ahead(1), Token::Name(n) if &**n == "in") => "not in",
                _ => break,
            };
            self.at += if op == "not in" { 2 } else { 1 };
            others.push((op, self.binary(0)?));
        }
        if others.is_empty() { Ok(left) } else { self.node(NodeKind::Compare(Box::new(left), others)) }
    }

    /// The levels of arithmetic: sums, `~`, products, powers.
    fn binary(&mut self, level: usize) -> Res<Expr> {
        const LEVELS: [&[&str]; 4] = [&["+", "-"], &["~"], &["*", "/", "//", "%"], &["**"]];
        let Some(signs) = LEVELS.get(level) else { return self.unary(true) };
        let mut left = self.binary(level + 1)?;
        loop {
            let op = match self.peek() {
                Token::Sign(op) if signs.contains(op) => *op,
                _ => return Ok(left),
            };
            self.at += 1;
            let right = self.binary(level + 1)?;
            left = self.node(NodeKind::Binary(op, Box::new(left), Box::new(right)))?;
        }
    }

    fn unary(&mut self, filters: bool) -> Res<Expr> {
        self.deeper()?;
        let mut value = if self.sign("-") {
            let value = self.unary(false)?;
            self.node(NodeKind::Minus(Box::new(value)))?
        } else if self.sign("+") {
            let value = self.unary(false)?;
            self.node(NodeKind::Plus(Box::new(value)))?
        } else {
            self.primary()?
        };
        value = self.postfix(value)?;
        loop {
            if !filters {
                break;
            } else if self.sign("|") {
                let filter = self.filter()?;
                value = self.node(NodeKind::Filter(Box::new(value), filter))?;
            } else if self.word("is") {
                let negated = self.word("not");
                let test = self.test()?;
                value = self.node(NodeKind::Test(Box::new(value), test, negated))?;
            } else if self.peek() == &Token::Sign("(") {
                value = self.postfix(value)?;
            } else {
                break;
            }
        }
        self.depth -= 1;
        Ok(value)
    }

    /// A test's name and its arguments, which need no brackets if there is one.
    fn test(&mut self) -> Res<Filter> {
        let name = self.name()?;
        if self.sign("(") {
            return Ok(Filter { name, args: self.args()? });
        }
        let bare = match self.peek() {
            Token::Name(word) => !matches!(&**word, "else" | "or" | "and" | "if" | "is" | "in" | "not" | "recursive"),
            Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Sign("[" | "{") => true,
            _ => false,
        };
        let mut args = Vec::new();
        if bare {
            let value = self.primary()?;
            args.push(Arg { name: None, value: self.postfix(value)? });
        }
        Ok(Filter { name, args })
    }

    /// Arguments up to `)`, the opening bracket already taken.
    fn args(&mut self) -> Res<Vec<Arg>> {
        let mut args = Vec::new();
        while !self.sign(")") {
            let name = match (self.peek(), self.ahead(1)) {
                (Token::Name(name), Token::Sign("=")) => Some(name.clone()),
                _ => None,
            };
            if name.is_some() {
                self.at += 2;
            }
            args.push(Arg { name, value: self.expression()? });
            if !self.sign(",") && self.peek() != &Token::Sign(")") {
                return Err(format!("',' or ')' expected among the arguments, found {:?}", self.peek()));
            }
        }
        Ok(args)
    }

    fn postfix(&mut self, mut value: Expr) -> Res<Expr> {
        loop {
            if self.sign(".") {
                value = match self.next() {
                    Token::Name(name) => self.node(NodeKind::Attribute(Box::new(value), name))?,
                    Token::Int(n) => {
                        let index = self.node(NodeKind::Int(n))?;
                        self.node(NodeKind::Item(Box::new(value), Box::new(index)))?
                    }
                    other => return Err(format!("a name expected after '.', found {other:?}")),
                };
            } else if self.sign("[") {
                value = self.subscript(value)?;
            } else if self.sign("(") {
                let args = self.args()?;
                value = self.node(NodeKind::Call(Box::new(value), args))?;
            } else {
                return Ok(value);
            }
        }
    }

    fn subscript(&mut self, value: Expr) -> Res<Expr> {
        let mut parts: [Option<Box<Expr>>; 3] = [None, None, None];
        let mut colons = 0;
        loop {
            if self.sign("]") {
                break;
            }
            if self.sign(":") {
                colons += 1;
                if colons > 2 {
                    return Err("a slice has at most two ':'".into());
                }
            } else if parts[colons].is_none() {
                parts[colons] = Some(Box::new(self.expression()?));
            } else {
                return Err(format!("']' expected, found {:?}", self.peek()));
            }
        }
        if colons > 0 {
            return self.node(NodeKind::Slice(Box::new(value), parts));
        }
        match parts {
            [Some(index), ..] => self.node(NodeKind::Item(Box::new(value), index)),
            _ => Err("an index expected".into()),
        }
    }

    fn primary(&mut self) -> Res<Expr> {
        let kind = match self.next() {
            Token::Name(name) => match &*name {
                "true" | "True" => NodeKind::Bool(true),
                "false" | "False" => NodeKind::Bool(false),
                "none" | "None" => NodeKind::None,
                "and" | "or" | "not" | "if" | "else" | "in" | "is" => return Err(format!("a value expected, found '{name}'")),
                _ => NodeKind::Name(name),
            },
            Token::Str(text) => {
                // Neighbouring texts are one.
                let mut joined = text.to_string();
                while let Token::Str(more) = self.peek() {
                    joined.push_str(more);
                    self.at += 1;
                }
                NodeKind::Str(joined.into())
            }
            Token::Int(n) => NodeKind::Int(n),
            Token::Float(f) => NodeKind::Float(f),
            Token::Sign("(") => {
                if self.sign(")") {
                    NodeKind::Tuple(Vec::new())
                } else {
                    let value = self.tuple()?;
                    self.expect(Token::Sign(")"))?;
                    return Ok(value);
                }
            }
            Token::Sign("[") => {
                let mut items = Vec::new();
                while !self.sign("]") {
                    items.push(self.expression()?);
                    if !self.sign(",") && self.peek() != &Token::Sign("]") {
                        return Err("',' or ']' expected".into());
                    }
                }
                NodeKind::List(items)
            }
            Token::Sign("{") => {
                let mut items = Vec::new();
                while !self.sign("}") {
                    let key = self.expression()?;
                    self.expect(Token::Sign(":"))?;
                    items.push((key, self.expression()?));
                    if !self.sign(",") && self.peek() != &Token::Sign("}") {
                        return Err("',' or '}' expected".into());
                    }
                }
                NodeKind::Dict(items)
            }
            other => return Err(format!("a value expected, found {other:?}")),
        };
        self.node(kind)
    }
}

impl NodeKind {
    fn children_depth(&self) -> u16 {
        let args = |args: &[Arg]| args.iter().map(|a| a.value.depth).max().unwrap_or(0);
        let all = |items: &[Expr]| items.iter().map(|e| e.depth).max().unwrap_or(0);
        match self {
            NodeKind::None | NodeKind::Bool(_) | NodeKind::Int(_) | NodeKind::Float(_) | NodeKind::Str(_) | NodeKind::Name(_) => 0,
            NodeKind::List(items) | NodeKind::Tuple(items) => all(items),
            NodeKind::Dict(items) => items.iter().map(|(k, v)| k.depth.max(v.depth)).max().unwrap_or(0),
            NodeKind::Attribute(a, _) | NodeKind::Not(a) | NodeKind::Minus(a) | NodeKind::Plus(a) => a.depth,
            NodeKind::Item(a, b) | NodeKind::And(a, b) | NodeKind::Or(a, b) | NodeKind::Binary(_, a, b) => a.depth.max(b.depth),
            NodeKind::Slice(a, parts) => parts.iter().flatten().map(|e| e.depth).max().unwrap_or(0).max(a.depth),
            NodeKind::Call(a, list) => a.depth.max(args(list)),
            NodeKind::Filter(a, filter) | NodeKind::Test(a, filter, _) => a.depth.max(args(&filter.args)),
            NodeKind::Compare(a, others) => others.iter().map(|(_, e)| e.depth).max().unwrap_or(0).max(a.depth),
            NodeKind::Choice(a, b, c) => a.depth.max(b.depth).max(c.as_ref().map_or(0, |c| c.depth)),
        }
    }
}
