//! Runs a template.

use std::rc::Rc;
use std::sync::Arc;

use super::builtins::{self, Args};
use super::methods;
use super::syntax::{Arg, Body, Expr, Filter, Macro, NodeKind, Stmt, Target};
use super::value::{LoopState, Meter, Res, Value};

/// How much a render may do.
pub(crate) struct RenderLimits {
    pub(crate) steps: usize,
    /// All text and lists made on the way, together.
    pub(crate) bytes: usize,
    pub(crate) output: usize,
}

/// How deep bodies, expressions and macros may be inside each other at run time.
const MAX_DEPTH: usize = 220;

/// Renders `template` with the given variables.
pub(crate) fn render(template: &Body, variables: &serde_json::Map<String, serde_json::Value>, limits: &RenderLimits) -> Res<String> {
    let meter = Meter::new(limits.steps, limits.bytes);
    let mut globals = Vec::with_capacity(variables.len() + 8);
    for (name, value) in variables {
        globals.push((Arc::from(name.as_str()), Value::from_json(value, &meter)?));
    }
    let mut run = Run { meter: &meter, scopes: vec![globals], namespaces: Vec::new(), depth: 0, loops: 0, output: limits.output };
    let mut out = String::new();
    run.body(template, &mut out)?;
    Ok(out)
}

type Scope = Vec<(Arc<str>, Value)>;

pub(crate) struct Run<'a> {
    pub(crate) meter: &'a Meter,
    scopes: Vec<Scope>,
    namespaces: Vec<Scope>,
    depth: usize,
    loops: usize,
    output: usize,
}

#[derive(PartialEq)]
enum Flow {
    On,
    Break,
    Continue,
}

impl Run<'_> {
    fn deeper(&mut self) -> Res<()> {
        self.meter.step(1)?;
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err("it calls itself too deep".into()) } else { Ok(()) }
    }

    fn body(&mut self, body: &[Stmt], out: &mut String) -> Res<Flow> {
        self.deeper()?;
        for statement in body {
            let flow = self.statement(statement, out)?;
            if out.len() > self.output {
                return Err(format!("its output is longer than {} bytes", self.output));
            }
            if flow != Flow::On {
                self.depth -= 1;
                return Ok(flow);
            }
        }
        self.depth -= 1;
        Ok(Flow::On)
    }

    /// Runs a body in a scope of its own.
    fn scoped(&mut self, scope: Scope, body: &[Stmt], out: &mut String) -> Res<Flow> {
        self.scopes.push(scope);
        let flow = self.body(body, out);
        self.scopes.pop();
        flow
    }

    fn statement(&mut self, statement: &Stmt, out: &mut String) -> Res<Flow> {
        self.meter.step(1)?;
        match statement {
            Stmt::Text(text) => self.meter.push(out, text)?,
            Stmt::Output(value) => self.eval(value)?.print(out, self.meter)?,
            Stmt::If(branches, otherwise) => {
                for (condition, body) in branches {
                    if self.eval(condition)?.is_true() {
                        return self.body(body, out);
                    }
                }
                return self.body(otherwise, out);
            }
            Stmt::For { targets, walk, keep, body, otherwise } => return self.walk(targets, walk, keep.as_ref(), body, otherwise, out),
            Stmt::Set(target, value) => {
                let value = self.eval(value)?;
                self.assign(target, value)?;
            }
            Stmt::SetBlock(target, filters, body) => {
                let mut text = String::new();
                let flow = self.scoped(Vec::new(), body, &mut text)?;
                let value = self.filtered(text, filters)?;
                self.assign(target, value)?;
                return Ok(flow);
            }
            Stmt::FilterBlock(filters, body) => {
                let mut text = String::new();
                let flow = self.scoped(Vec::new(), body, &mut text)?;
                self.filtered(text, filters)?.print(out, self.meter)?;
                return Ok(flow);
            }
            Stmt::With(names, body) => {
                let mut scope = Vec::new();
                for (name, value) in names {
                    scope.push((name.clone(), self.eval(value)?));
                }
                return self.scoped(scope, body, out);
            }
            Stmt::Macro(definition) => self.define(definition.name.clone(), Value::Macro(definition.clone())),
            Stmt::Do(value) => drop(self.eval(value)?),
            Stmt::Break => return Ok(Flow::Break),
            Stmt::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    fn filtered(&mut self, text: String, filters: &[Filter]) -> Res<Value> {
        let mut value = self.meter.text(text)?;
        for filter in filters {
            let args = self.args(&filter.args)?;
            value = builtins::filter(self, &filter.name, value, args)?;
        }
        Ok(value)
    }

    fn walk(
        &mut self,
        targets: &[Arc<str>],
        walk: &Expr,
        keep: Option<&Expr>,
        body: &[Stmt],
        otherwise: &[Stmt],
        out: &mut String,
    ) -> Res<Flow> {
        let walked = self.eval(walk)?;
        let mut items = walked.items(self.meter)?;
        if let Some(keep) = keep {
            let mut kept = Vec::new();
            for item in items {
                self.meter.step(1)?;
                self.scopes.push(self.unpack(targets, item.clone())?);
                let condition = self.eval(keep);
                self.scopes.pop();
                if condition?.is_true() {
                    kept.push(item);
                }
            }
            items = kept;
        }
        if items.is_empty() {
            return self.body(otherwise, out);
        }
        self.loops += 1;
        let loop_name: Arc<str> = Arc::from("loop");
        for (index0, item) in items.iter().enumerate() {
            let state = LoopState {
                index0,
                length: items.len(),
                depth0: self.loops - 1,
                previous: index0.checked_sub(1).map(|i| items[i].clone()),
                next: items.get(index0 + 1).cloned(),
            };
            self.meter.step(4)?;
            let mut scope = self.unpack(targets, item.clone())?;
            scope.push((loop_name.clone(), Value::Loop(Rc::new(state))));
            if self.scoped(scope, body, out)? == Flow::Break {
                break;
            }
        }
        self.loops -= 1;
        Ok(Flow::On)
    }

    /// The names that one item, or its parts, are bound to.
    fn unpack(&self, targets: &[Arc<str>], item: Value) -> Res<Scope> {
        if let [name] = targets {
            return Ok(vec![(name.clone(), item)]);
        }
        let parts = item.items(self.meter).map_err(|_| format!("cannot unpack a {}", item.type_name()))?;
        if parts.len() != targets.len() {
            return Err(format!("{} values for {} names", parts.len(), targets.len()));
        }
        Ok(targets.iter().cloned().zip(parts).collect())
    }

    fn assign(&mut self, target: &Target, value: Value) -> Res<()> {
        match target {
            Target::Names(names) => {
                for (name, value) in self.unpack(names, value)? {
                    self.define(name, value);
                }
                Ok(())
            }
            Target::Attribute(name, attribute) => match self.look_up(name) {
                Value::Namespace(id) => {
                    put(&mut self.namespaces[id], attribute.clone(), value);
                    Ok(())
                }
                _ => Err("attributes can be set on a namespace only".into()),
            },
        }
    }

    fn define(&mut self, name: Arc<str>, value: Value) {
        if let Some(scope) = self.scopes.last_mut() {
            put(scope, name, value);
        }
    }

    fn look_up(&self, name: &str) -> Value {
        for scope in self.scopes.iter().rev() {
            if let Some((_, value)) = scope.iter().find(|(n, _)| &**n == name) {
                return value.clone();
            }
        }
        match builtins::function(name) {
            Some(function) => Value::Function(function),
            None => Value::undefined(format!("'{name}' is undefined")),
        }
    }

    /// A new namespace with the given attributes.
    pub(crate) fn namespace(&mut self, attributes: Scope) -> Res<Value> {
        self.meter.bytes(64 + attributes.len() * 48)?;
        self.namespaces.push(attributes);
        Ok(Value::Namespace(self.namespaces.len() - 1))
    }

    fn args(&mut self, args: &[Arg]) -> Res<Args> {
        let mut values = Args::default();
        for arg in args {
            let value = self.eval(&arg.value)?;
            match &arg.name {
                Some(name) => values.named.push((name.clone(), value)),
                None => values.plain.push(value),
            }
        }
        Ok(values)
    }

    fn eval(&mut self, expr: &Expr) -> Res<Value> {
        self.deeper()?;
        let value = self.eval_kind(&expr.kind);
        self.depth -= 1;
        value
    }

    fn eval_kind(&mut self, kind: &NodeKind) -> Res<Value> {
        Ok(match kind {
            NodeKind::None => Value::None,
            NodeKind::Bool(b) => Value::Bool(*b),
            NodeKind::Int(n) => Value::Int(*n),
            NodeKind::Float(f) => Value::Float(*f),
            NodeKind::Str(text) => Value::Str(text.clone()),
            NodeKind::Name(name) => {
                self.meter.step(self.scopes.len() / 8)?;
                self.look_up(name)
            }
            NodeKind::List(items) => {
                let items = items.iter().map(|e| self.eval(e)).collect::<Res<_>>()?;
                self.meter.list(items)?
            }
            NodeKind::Tuple(items) => {
                let items = items.iter().map(|e| self.eval(e)).collect::<Res<_>>()?;
                self.meter.tuple(items)?
            }
            NodeKind::Dict(pairs) => {
                let mut items: Vec<(Value, Value)> = Vec::new();
                for (key, value) in pairs {
                    let (key, value) = (self.eval(key)?, self.eval(value)?);
                    self.meter.step(items.len())?;
                    builtins::put(&mut items, key, value, self.meter)?;
                }
                self.meter.dict(items)?
            }
            NodeKind::Attribute(of, name) => {
                let of = self.eval(of)?;
                self.attribute(&of, name)?
            }
            NodeKind::Item(of, index) => {
                let (of, index) = (self.eval(of)?, self.eval(index)?);
                self.item(&of, &index)?
            }
            NodeKind::Slice(of, parts) => {
                let of = self.eval(of)?;
                let mut bounds = [None; 3];
                for (bound, part) in bounds.iter_mut().zip(parts) {
                    *bound = match part.as_ref().map(|e| self.eval(e)).transpose()? {
                        None | Some(Value::None) => None,
                        Some(value) => Some(value.as_int().ok_or("slice indices must be integers")?),
                    };
                }
                methods::slice(&of, bounds, self.meter)?
            }
            NodeKind::Call(callee, args) => {
                // A method is called without making it a value first.
                if let NodeKind::Attribute(of, name) = &callee.kind {
                    let of = self.eval(of)?;
                    if methods::has(&of, name) {
                        let args = self.args(args)?;
                        return methods::call(&of, name, args, self.meter);
                    }
                    let callee = self.attribute(&of, name)?;
                    let args = self.args(args)?;
                    return self.call(callee, args);
                }
                let callee = self.eval(callee)?;
                let args = self.args(args)?;
                self.call(callee, args)?
            }
            NodeKind::Filter(value, filter) => {
                let value = self.eval(value)?;
                let args = self.args(&filter.args)?;
                builtins::filter(self, &filter.name, value, args)?
            }
            NodeKind::Test(value, test, negated) => {
                let value = self.eval(value)?;
                let args = self.args(&test.args)?;
                Value::Bool(builtins::test(&test.name, &value, &args, self.meter)? != *negated)
            }
            NodeKind::Not(value) => Value::Bool(!self.eval(value)?.is_true()),
            NodeKind::Minus(value) => match self.eval(value)? {
                Value::Float(f) => Value::Float(-f),
                other => Value::Int(number(&other)?.checked_neg().ok_or("a number is too large")?),
            },
            NodeKind::Plus(value) => match self.eval(value)? {
                Value::Float(f) => Value::Float(f),
                other => Value::Int(number(&other)?),
            },
            NodeKind::And(a, b) => {
                let a = self.eval(a)?;
                if a.is_true() { self.eval(b)? } else { a }
            }
            NodeKind::Or(a, b) => {
                let a = self.eval(a)?;
                if a.is_true() { a } else { self.eval(b)? }
            }
            NodeKind::Binary(op, a, b) => {
                let (a, b) = (self.eval(a)?, self.eval(b)?);
                builtins::binary(op, &a, &b, self.meter)?
            }
            NodeKind::Compare(first, others) => {
                let mut left = self.eval(first)?;
                for (op, other) in others {
                    let right = self.eval(other)?;
                    if !builtins::compare(op, &left, &right, self.meter)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Value::Bool(true)
            }
            NodeKind::Choice(condition, value, otherwise) => {
                if self.eval(condition)?.is_true() {
                    self.eval(value)?
                } else if let Some(otherwise) = otherwise {
                    self.eval(otherwise)?
                } else {
                    Value::undefined("the condition of an 'if' without 'else' was false")
                }
            }
        })
    }

    /// `of.name`: a method or field first, then an entry.
    pub(crate) fn attribute(&self, of: &Value, name: &Arc<str>) -> Res<Value> {
        self.meter.step(1)?;
        match of {
            Value::Undefined(message) => return Err(message.to_string()),
            Value::Namespace(id) => {
                if let Some((_, value)) = self.namespaces[*id].iter().find(|(n, _)| n == name) {
                    return Ok(value.clone());
                }
            }
            Value::Loop(state) => {
                if let Some(value) = loop_field(state, name) {
                    return Ok(value);
                }
            }
            Value::Macro(definition) if &**name == "name" => return Ok(Value::Str(definition.name.clone())),
            _ => {}
        }
        if methods::has(of, name) {
            return Ok(Value::Method(Rc::new((of.clone(), name.clone()))));
        }
        Ok(of.entry(name).cloned().unwrap_or_else(|| missing(of, name)))
    }

    /// `of[index]`: an entry first, then a method or field.
    pub(crate) fn item(&self, of: &Value, index: &Value) -> Res<Value> {
        self.meter.step(1)?;
        if let Value::Undefined(message) = of {
            return Err(message.to_string());
        }
        if let Some(value) = of.get(index, self.meter)? {
            return Ok(value);
        }
        if let (Some(at), Value::List(_) | Value::Tuple(_) | Value::Str(_) | Value::Markup(_)) = (index.as_int(), of) {
            let length = of.len().unwrap_or(0) as i64;
            let at = if at < 0 { at.saturating_add(length) } else { at };
            return Ok(match of {
                _ if !(0..length).contains(&at) => Value::undefined(format!("{} object has no element {at}", of.type_name())),
                Value::List(s) | Value::Tuple(s) => s.items[at as usize].clone(),
                _ => {
                    let text = of.as_str().unwrap_or("");
                    self.meter.step(text.len() / 64)?;
                    let letter: String = text.chars().skip(at as usize).take(1).collect();
                    self.meter.text(letter)?
                }
            });
        }
        match index {
            Value::Str(name) | Value::Markup(name) => self.attribute(of, name),
            _ => Ok(missing(of, "that key")),
        }
    }

    fn call(&mut self, callee: Value, args: Args) -> Res<Value> {
        match callee {
            Value::Function(name) => builtins::call(self, name, args),
            Value::Method(method) => methods::call(&method.0, &method.1, args, self.meter),
            Value::Macro(definition) => self.call_macro(&definition, args),
            Value::Undefined(message) => Err(message.to_string()),
            other => Err(format!("'{}' object is not callable", other.type_name())),
        }
    }

    fn call_macro(&mut self, definition: &Arc<Macro>, args: Args) -> Res<Value> {
        if args.plain.len() > definition.parameters.len() {
            return Err(format!("macro '{}' takes {} arguments", definition.name, definition.parameters.len()));
        }
        if let Some((name, _)) = args.named.iter().find(|(n, _)| !definition.parameters.iter().any(|(p, _)| p == n)) {
            return Err(format!("macro '{}' takes no argument '{name}'", definition.name));
        }
        // A macro sees the template's variables and its own, not its caller's.
        let callers = self.scopes.split_off(1);
        let result = self.call_in_scope(definition, args);
        self.scopes.truncate(1);
        self.scopes.extend(callers);
        self.meter.text(result?)
    }

    fn call_in_scope(&mut self, definition: &Macro, args: Args) -> Res<String> {
        let mut plain = args.plain.into_iter();
        self.scopes.push(Vec::new());
        for (name, default) in &definition.parameters {
            let given = plain.next().or_else(|| args.named.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone()));
            let value = match (given, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.eval(default)?,
                (None, None) => Value::undefined(format!("parameter '{name}' was not provided")),
            };
            self.define(name.clone(), value);
        }
        let mut text = String::new();
        self.body(&definition.body, &mut text)?;
        Ok(text)
    }
}

fn put(scope: &mut Scope, name: Arc<str>, value: Value) {
    match scope.iter_mut().find(|(n, _)| *n == name) {
        Some(slot) => slot.1 = value,
        None => scope.push((name, value)),
    }
}

fn number(value: &Value) -> Res<i64> {
    match value {
        Value::Undefined(message) => Err(message.to_string()),
        other => other.as_int().ok_or_else(|| format!("a {} is not a number", other.type_name())),
    }
}

fn missing(of: &Value, name: &str) -> Value {
    let name: String = name.chars().take(60).collect();
    let of = if matches!(of, Value::None) { "'None'".to_string() } else { format!("'{} object'", of.type_name()) };
    Value::undefined(format!("{of} has no attribute '{name}'"))
}

fn loop_field(state: &LoopState, name: &str) -> Option<Value> {
    let int = |n: usize| Value::Int(n as i64);
    Some(match name {
        "index" => int(state.index0 + 1),
        "index0" => int(state.index0),
        "revindex" => int(state.length - state.index0),
        "revindex0" => int(state.length - state.index0 - 1),
        "first" => Value::Bool(state.index0 == 0),
        "last" => Value::Bool(state.index0 + 1 == state.length),
        "length" => int(state.length),
        "depth" => int(state.depth0 + 1),
        "depth0" => int(state.depth0),
        "previtem" => state.previous.clone().unwrap_or_else(|| Value::undefined("there is no previous item")),
        "nextitem" => state.next.clone().unwrap_or_else(|| Value::undefined("there is no next item")),
        _ => return None,
    })
}
