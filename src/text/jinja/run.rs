//! Runs a template.

use std::rc::Rc;
use std::sync::Arc;

use super::args::Args;
use super::builtins;
use super::lookup::{Lookup, Scope, put};
use super::meter::{Meter, Res};
use super::methods;
use super::syntax::{Arg, Body, Expr, Filter, Macro, NodeKind, Stmt, Target};
use super::value::{LoopState, Value};

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
    let mut run = Run { meter: &meter, lookup: Lookup::new(&meter), scopes: vec![globals], depth: 0, loops: 0, output: limits.output };
    let mut out = String::new();
    run.body(template, &mut out)?;
    Ok(out)
}

struct Run<'a> {
    meter: &'a Meter,
    lookup: Lookup<'a>,
    scopes: Vec<Scope>,
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
            Stmt::For { targets, iterable, keep, body, otherwise } => {
                return self.for_loop(targets, iterable, keep.as_ref(), body, otherwise, out);
            }
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
            value = builtins::filter(&self.lookup, &filter.name, value, args)?;
        }
        Ok(value)
    }

    fn for_loop(
        &mut self,
        targets: &[Arc<str>],
        iterable: &Expr,
        keep: Option<&Expr>,
        body: &[Stmt],
        otherwise: &[Stmt],
        out: &mut String,
    ) -> Res<Flow> {
        let mut items = self.eval(iterable)?.items(self.meter)?;
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
                    self.lookup.set(id, attribute.clone(), value);
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
            NodeKind::Dict(pairs) => self.dict(pairs)?,
            NodeKind::Attribute(of, name) => {
                let of = self.eval(of)?;
                self.lookup.attribute(&of, name)?
            }
            NodeKind::Item(of, index) => {
                let (of, index) = (self.eval(of)?, self.eval(index)?);
                self.lookup.item(&of, &index)?
            }
            NodeKind::Slice(of, parts) => self.slice(of, parts)?,
            NodeKind::Call(callee, args) => self.call_expression(callee, args)?,
            NodeKind::Filter(value, filter) => {
                let value = self.eval(value)?;
                let args = self.args(&filter.args)?;
                builtins::filter(&self.lookup, &filter.name, value, args)?
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
            NodeKind::Compare(first, others) => Value::Bool(self.compare(first, others)?),
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

    /// `{key: value, …}`.
    fn dict(&mut self, pairs: &[(Expr, Expr)]) -> Res<Value> {
        let mut items: Vec<(Value, Value)> = Vec::new();
        for (key, value) in pairs {
            let (key, value) = (self.eval(key)?, self.eval(value)?);
            self.meter.step(items.len())?;
            builtins::put(&mut items, key, value, self.meter)?;
        }
        self.meter.dict(items)
    }

    /// `of[start:stop:step]`.
    fn slice(&mut self, of: &Expr, parts: &[Option<Box<Expr>>; 3]) -> Res<Value> {
        let of = self.eval(of)?;
        let mut bounds = [None; 3];
        for (bound, part) in bounds.iter_mut().zip(parts) {
            *bound = match part.as_ref().map(|e| self.eval(e)).transpose()? {
                None | Some(Value::None) => None,
                Some(value) => Some(value.as_int().ok_or("slice indices must be integers")?),
            };
        }
        methods::slice(&of, bounds, self.meter)
    }

    /// `first < second <= …`: whether all of them hold.
    fn compare(&mut self, first: &Expr, others: &[(&'static str, Expr)]) -> Res<bool> {
        let mut left = self.eval(first)?;
        for (op, other) in others {
            let right = self.eval(other)?;
            if !builtins::compare(op, &left, &right, self.meter)? {
                return Ok(false);
            }
            left = right;
        }
        Ok(true)
    }

    /// `callee(args)`. A method is called without making it a value first.
    fn call_expression(&mut self, callee: &Expr, args: &[Arg]) -> Res<Value> {
        let callee = match &callee.kind {
            NodeKind::Attribute(of, name) => {
                let of = self.eval(of)?;
                if methods::has(&of, name) {
                    let args = self.args(args)?;
                    return methods::call(&of, name, args, self.meter);
                }
                self.lookup.attribute(&of, name)?
            }
            _ => self.eval(callee)?,
        };
        let args = self.args(args)?;
        self.call(callee, args)
    }

    fn call(&mut self, callee: Value, args: Args) -> Res<Value> {
        match callee {
            Value::Function(name) => builtins::call(&mut self.lookup, name, args),
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

fn number(value: &Value) -> Res<i64> {
    match value {
        Value::Undefined(message) => Err(message.to_string()),
        other => other.as_int().ok_or_else(|| format!("a {} is not a number", other.type_name())),
    }
}
