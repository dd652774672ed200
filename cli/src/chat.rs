//! `tl chat`: a conversation. Its keys and values stay on the device, so that each turn reads only what is new.

use crate::answer::{ChatOptions, Shown, message};
use crate::generate::{Answering, CONTEXT, End, SamplingArgs, Stats, answer_in_parts, context_of, full};
use crate::model::{Loaded, ModelArgs, warn_unknown};
use crate::output::{self, Failure};
use crate::{Global, interrupt};
use clap::Args;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::io::{BufRead, IsTerminal, Write};
use tensorlogic::PipelineStrategy;
use tensorlogic::models::{Sampler, Session};
use tensorlogic::text::{AnswerReader, ChatTemplate};

const HELP: &str = "/reset      start a new conversation\n/tool TEXT  the result of the function that the model called\n/exit       quit (also Ctrl-D)\nCtrl-C      stop the answer";

/// Chat with a model
#[derive(Args)]
#[command(after_help = "In the conversation:
  /reset      start a new conversation
  /tool TEXT  the result of the function that the model called (--tools)
  /exit       quit (also Ctrl-D)
  Ctrl-C      stop the answer

What the model thinks goes to stderr, its answer to stdout; --quiet leaves the thoughts out. If stdin is piped, each line is a turn:
  printf 'Hi!\\nSay that again.\\n' | tl chat --quiet")]
pub struct ChatArgs {
    /// System prompt
    #[arg(long)]
    system: Option<String>,
    /// Maximum number of tokens per answer
    #[arg(short = 'n', long, default_value_t = 1024)]
    max_tokens: usize,
    /// Print token counts and speed after each answer
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    chat: ChatOptions,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    model: ModelArgs,
}

struct ChatSession<'a> {
    loaded: &'a Loaded,
    template: &'a ChatTemplate,
    session: Session<'a>,
    /// Messages in the words of the template.
    messages: Vec<Value>,
    /// Messages that `/reset` keeps.
    fixed: usize,
    /// The template's variables besides the messages.
    variables: Map<String, Value>,
    /// The results that are due, without their contents.
    due: VecDeque<Value>,
}

impl ChatSession<'_> {
    /// The model's answer to a message. When it fails, the conversation is as before.
    fn turn(
        &mut self,
        message: Value,
        max_tokens: usize,
        sampler: &mut Sampler,
        shown: &mut Shown,
        out: &mut impl Write,
    ) -> Result<Stats, Failure> {
        self.messages.push(message);
        let ids = match self.loaded.encode_messages(self.template, &self.messages, &self.variables) {
            Ok(ids) if ids.len() < self.session.context() => ids,
            other => {
                self.messages.pop();
                let tokens = other?.len();
                return Err(Failure::Error(format!(
                    "the conversation has {tokens} tokens, the context holds {}; /reset starts over, --ctx raises the limit",
                    self.session.context()
                )));
            }
        };
        // What the cache already holds is not read again; the last token is, for its logits.
        let same = self.session.tokens().iter().zip(&ids).take_while(|(a, b)| a == b).count().min(ids.len() - 1);
        self.session.truncate(same);
        let tokenizer = &self.loaded.tokenizer;
        let tools = self.variables.contains_key("tools");
        let reader = AnswerReader::new(tokenizer, Some(self.template)).answering(&ids, tools)?;
        let emit = |part| shown.part(part, out);
        let answering = Answering { session: &mut self.session, tokenizer, sampler, max_tokens, profiler: None };
        let result = answer_in_parts(answering, reader, &ids[same..], emit);
        shown.end_thought();
        match &result {
            // Stopped before the answer began: as if it had not been asked.
            Ok(stats) if stats.generated == 0 => drop(self.messages.pop()),
            Ok(_) => {
                self.messages.push(shown.message());
                self.due = shown.due().collect();
            }
            Err(_) => drop(self.messages.pop()),
        }
        result.map_err(|e| self.loaded.failed(e))
    }

    /// The message that a line is; `None` where it is answered without the model.
    fn message_of(&mut self, line: &str) -> Option<Value> {
        let result = if line.trim() == "/tool" { Some("") } else { line.strip_prefix("/tool ") };
        let Some(result) = result else { return Some(message("user", line)) };
        let Some(mut reply) = self.due.pop_front() else {
            output::note("no result is due: the model has called no function (--tools says which there are)");
            return None;
        };
        reply["content"] = result.trim_start().into();
        match self.due.front() {
            Some(next) => {
                output::note(&format!("the result of {} is due as well", next["name"]));
                self.messages.push(reply);
                None
            }
            None => Some(reply),
        }
    }

    fn reset(&mut self) {
        self.messages.truncate(self.fixed);
        self.due.clear();
        self.session.truncate(0);
    }
}

/// Runs the subcommand.
pub fn run(args: &ChatArgs, global: Global) -> Result<(), Failure> {
    args.sampling.check()?;
    let loaded = args.model.load(global)?;
    let mut sampler = args.sampling.sampler(&loaded.defaults)?;
    let Some(template) = &loaded.template else {
        return Err(Failure::Error("the model has no chat template; `tl generate --raw` continues a text".into()));
    };
    let ctx = context_of(args.sampling.ctx, CONTEXT, &loaded.model.shape(), global)?;
    let session = loaded.session(ctx, PipelineStrategy::from_env()?.unwrap_or_default())?;
    let messages: Vec<Value> = args.system.iter().map(|s| message("system", s)).collect();
    let (fixed, variables) = (messages.len(), args.chat.variables(template)?);
    let mut talk = ChatSession { loaded: &loaded, template, session, messages, fixed, variables, due: VecDeque::new() };
    args.sampling.note_defaults(&loaded.defaults, global);
    let stdin = std::io::stdin();
    let terminal = stdin.is_terminal() && std::io::stderr().is_terminal();
    if terminal && !global.quiet {
        output::note("/reset starts over, /exit or Ctrl-D quits, Ctrl-C stops an answer");
    }
    interrupt::install();
    let mut out = std::io::stdout();
    let mut line = String::new();
    let mut named = std::collections::HashSet::new();
    // Notes about devices that were left.
    let mut told = 0;
    loop {
        interrupt::idle(true);
        if terminal {
            let _ = write!(std::io::stderr(), "> ");
        }
        line.clear();
        if stdin.lock().read_line(&mut line).map_err(|e| Failure::Error(format!("stdin: {e}")))? == 0 {
            if terminal {
                output::note("");
            }
            return Ok(());
        }
        interrupt::idle(false);
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" => return Ok(()),
            "/reset" => {
                talk.reset();
                continue;
            }
            "/help" | "/?" => {
                output::note(HELP);
                continue;
            }
            command if command.starts_with('/') && !command.contains(' ') && command != "/tool" => {
                output::note(&format!("unknown command {command}\n{HELP}"));
                continue;
            }
            _ => {}
        }
        // What was named once is not named again.
        let fresh: String = line.chars().filter(|c| !named.contains(c)).collect();
        warn_unknown(&loaded.tokenizer, [fresh.as_str()], global)?;
        named.extend(fresh.chars());
        let text = line.trim_end_matches(['\n', '\r']);
        let Some(asked) = talk.message_of(text) else { continue };
        let mut shown = Shown::new(global);
        let turn = talk.turn(asked, args.max_tokens, &mut sampler, &mut shown, &mut out);
        let stats = match turn {
            Ok(stats) => stats,
            Err(Failure::Closed) => return Err(Failure::Closed),
            // On a terminal the user can shorten the message; a script has to know.
            Err(e) if terminal => {
                output::note(&format!("tl: {e}"));
                continue;
            }
            Err(e) => return Err(e),
        };
        if global.json {
            let value = json!({ "text": shown.text, "thinking": shown.thinking(), "tool_calls": shown.calls_json(), "end": stats.end.name(), "prompt_tokens": stats.prompt_tokens,
                "generated_tokens": stats.generated, "context_tokens": talk.session.tokens().len() });
            output::result(&value.to_string())?;
        } else {
            writeln!(out)?;
        }
        talk.session.fallbacks()[told..].iter().for_each(|note| output::note(&note.to_string()));
        told = talk.session.fallbacks().len();
        if !global.quiet {
            if stats.end == End::Context {
                output::note(&format!("{}; /reset starts over", full(ctx, &loaded.model.shape())));
            }
            if args.stats {
                output::note(&stats.line(talk.session.device()));
            }
        }
    }
}
