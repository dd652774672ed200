//! What `tl chat` and `tl generate` hand to a chat template besides the messages, and how they show an answer: thoughts and calls of tools apart.

use crate::Global;
use crate::output::Failure;
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use tensorlogic::text::{AnswerPart, ChatTemplate, ToolCall};

/// What a chat template gets besides the messages.
#[derive(Args, Clone)]
pub struct ChatOptions {
    /// Functions that the model may call: a JSON list in OpenAI's format
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Whether the model thinks before it answers, where its template has a choice [default: the template's]
    #[arg(long, value_name = "WHEN")]
    thinking: Option<Thinking>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Thinking {
    On,
    Off,
}

impl ChatOptions {
    /// The variables of the template.
    pub fn variables(&self, template: &ChatTemplate) -> Result<Map<String, Value>, Failure> {
        let mut variables = Map::new();
        if let Some(path) = &self.tools {
            let failed = |e: &dyn std::fmt::Display| Failure::Error(format!("{}: {e}", path.display()));
            let text = std::fs::read_to_string(path).map_err(|e| failed(&e))?;
            let tools: Value = serde_json::from_str(&text).map_err(|e| failed(&e))?;
            let is_tool = |t: &Value| t["function"]["name"].is_string();
            if !tools.as_array().is_some_and(|all| !all.is_empty() && all.iter().all(is_tool)) {
                let example = r#"[{"type": "function", "function": {"name": …, "description": …, "parameters": …}}]"#;
                return Err(failed(&format!("not a list of functions such as {example}")));
            }
            if !template.mentions("tools") {
                return Err(Failure::Usage("--tools: the model's chat template does not take tools".into()));
            }
            variables.insert("tools".into(), tools);
        }
        if let Some(thinking) = self.thinking {
            let keys = ["enable_thinking", "thinking"];
            let known: Vec<&str> = keys.into_iter().filter(|key| template.mentions(key)).collect();
            if known.is_empty() {
                return Err(Failure::Usage("--thinking: the model's chat template has no such switch".into()));
            }
            variables.extend(known.into_iter().map(|key| (key.to_string(), Value::Bool(thinking == Thinking::On))));
        }
        Ok(variables)
    }
}

/// A message of a conversation.
pub fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// An answer as it is shown: the text on stdout, thoughts on stderr, a call of a tool as a line of its own. With `--json` it is only collected.
pub struct Shown {
    json: bool,
    quiet: bool,
    dim: bool,
    /// The text of the answer.
    pub text: String,
    thoughts: String,
    calls: Vec<ToolCall>,
    /// Calls in a notation that is not known.
    unread: Vec<String>,
    /// Whether a thought was the last thing shown.
    thinking: bool,
}

/// How a terminal shows thoughts.
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

impl Shown {
    /// Nothing so far.
    pub fn new(global: Global) -> Shown {
        Shown {
            json: global.json,
            quiet: global.quiet,
            dim: std::io::stderr().is_terminal(),
            text: String::new(),
            thoughts: String::new(),
            calls: Vec::new(),
            unread: Vec::new(),
            thinking: false,
        }
    }

    /// Shows the next part.
    pub fn part(&mut self, part: AnswerPart, out: &mut impl Write) -> Result<(), Failure> {
        match part {
            AnswerPart::Thought(thought) => {
                self.thoughts.push_str(&thought);
                if !self.json && !self.quiet {
                    let begin = if self.thinking { "" } else { "[thinking] " };
                    let (dim, plain) = if self.dim { (DIM, PLAIN) } else { ("", "") };
                    // Nobody depends on thoughts: a closed stderr does not end the answer.
                    let _ = write!(std::io::stderr(), "{dim}{begin}{thought}{plain}");
                    self.thinking = true;
                }
            }
            AnswerPart::Text(text) => {
                self.end_thought();
                self.text.push_str(&text);
                if !self.json {
                    out.write_all(text.as_bytes())?;
                    out.flush()?;
                }
            }
            AnswerPart::Calls { written, calls } => {
                self.end_thought();
                if !self.json {
                    let lines: Vec<String> = match calls.is_empty() {
                        true => vec![format!("[tool call] {written}")],
                        false => calls.iter().map(|c| format!("[tool call] {} {}", c.name, c.arguments)).collect(),
                    };
                    let begin = if self.text.is_empty() || self.text.ends_with('\n') { "" } else { "\n" };
                    write!(out, "{begin}{}", lines.join("\n"))?;
                    out.flush()?;
                }
                if calls.is_empty() {
                    self.unread.push(written);
                }
                self.calls.extend(calls);
            }
        }
        Ok(())
    }

    /// Ends the line of a thought.
    pub fn end_thought(&mut self) {
        if std::mem::take(&mut self.thinking) {
            let _ = writeln!(std::io::stderr());
        }
    }

    /// The thoughts for `--json`; null where there are none.
    pub fn thinking(&self) -> Option<&str> {
        (!self.thoughts.is_empty()).then(|| self.thoughts.trim_end())
    }

    /// The calls for `--json`; those that could not be read as they were written.
    pub fn calls_json(&self) -> Vec<Value> {
        let calls = self.calls.iter().map(|c| json!({ "name": c.name, "arguments": c.arguments }));
        calls.chain(self.unread.iter().map(|written| json!({ "written": written }))).collect()
    }

    /// The answer as a message of the conversation, in the words of transformers' templates.
    pub fn message(&self) -> Value {
        let mut said = message("assistant", &self.text);
        if let Some(thought) = self.thinking() {
            // Templates name it either way, and drop it themselves where the model was trained without it.
            said["reasoning_content"] = thought.into();
            said["thinking"] = thought.into();
        }
        if !self.calls.is_empty() {
            let call = |(n, c): (usize, &ToolCall)| json!({ "id": call_id(n), "type": "function", "function": { "name": c.name, "arguments": c.arguments } });
            said["tool_calls"] = self.calls.iter().enumerate().map(call).collect();
        }
        for written in &self.unread {
            said["content"] = format!("{}{written}", said["content"].as_str().unwrap_or_default()).into();
        }
        said
    }

    /// The results that are due, without their contents, in the order of the calls.
    pub fn due(&self) -> impl Iterator<Item = Value> {
        self.calls.iter().enumerate().map(|(n, c)| json!({ "role": "tool", "name": c.name, "tool_call_id": call_id(n) }))
    }
}

/// The name of an answer's n-th call: Mistral's templates want nine letters and digits.
fn call_id(n: usize) -> String {
    format!("call{n:05}")
}
