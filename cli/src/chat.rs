//! `tl chat`: a conversation. Its keys and values stay on the device, so that each turn reads only what is new.

use crate::generate::{CONTEXT, End, SamplingArgs, Stats, answer, context_of, full};
use crate::model::{Loaded, ModelArgs, warn_unknown};
use crate::output::{self, Failure};
use crate::{Global, interrupt};
use clap::Args;
use std::io::{BufRead, IsTerminal, Write};
use tensorlogic::PipelineStrategy;
use tensorlogic::models::{Sampler, Session};
use tensorlogic::text::{ChatTemplate, Message};

const HELP: &str = "/reset  start a new conversation\n/exit   quit (also Ctrl-D)\nCtrl-C  stop the answer";

/// Chat with a model
#[derive(Args)]
#[command(after_help = "In the conversation:
  /reset    start a new conversation
  /exit     quit (also Ctrl-D)
  Ctrl-C    stop the answer

If stdin is piped, each line is a turn:
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
    sampling: SamplingArgs,
    #[command(flatten)]
    model: ModelArgs,
}

struct Conversation<'a> {
    loaded: &'a Loaded,
    template: &'a ChatTemplate,
    session: Session<'a>,
    messages: Vec<Message>,
    /// Messages that `/reset` keeps.
    fixed: usize,
}

impl Conversation<'_> {
    /// The model's answer to a message of the user. When it fails, the conversation is as before.
    fn turn(
        &mut self,
        text: &str,
        max_tokens: usize,
        sampler: &mut Sampler,
        mut emit: impl FnMut(&str) -> Result<(), Failure>,
    ) -> Result<Stats, Failure> {
        self.messages.push(Message::new("user", text));
        let ids = match self.loaded.encode_chat(self.template, &self.messages) {
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
        let mut said = String::new();
        let result = answer(&mut self.session, &self.loaded.tokenizer, &ids[same..], max_tokens, sampler, None, |piece| {
            said.push_str(piece);
            emit(piece)
        });
        match &result {
            // Stopped before the answer began: as if it had not been asked.
            Ok(stats) if stats.generated == 0 => drop(self.messages.pop()),
            Ok(_) => self.messages.push(Message::new("assistant", said)),
            Err(_) => drop(self.messages.pop()),
        }
        result.map_err(|e| self.loaded.failed(e))
    }

    fn reset(&mut self) {
        self.messages.truncate(self.fixed);
        self.session.truncate(0);
    }
}

/// Runs the subcommand.
pub fn run(args: &ChatArgs, global: Global) -> Result<(), Failure> {
    let mut sampler = args.sampling.sampler()?;
    let loaded = args.model.load(global)?;
    let Some(template) = &loaded.template else {
        return Err(Failure::Error("the model has no chat template; `tl generate --raw` continues a text".into()));
    };
    let ctx = context_of(args.sampling.ctx, CONTEXT, &loaded.model.shape(), global)?;
    let session = loaded.session(ctx, PipelineStrategy::from_env()?.unwrap_or_default())?;
    let messages: Vec<Message> = args.system.iter().map(|s| Message::new("system", s)).collect();
    let fixed = messages.len();
    let mut talk = Conversation { loaded: &loaded, template, session, messages, fixed };
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
            command if command.starts_with('/') && !command.contains(' ') => {
                output::note(&format!("unknown command {command}\n{HELP}"));
                continue;
            }
            _ => {}
        }
        // What was named once is not named again.
        let fresh: String = line.chars().filter(|c| !named.contains(c)).collect();
        warn_unknown(&loaded.tokenizer, [fresh.as_str()], global)?;
        named.extend(fresh.chars());
        let mut all = String::new();
        let turn = talk.turn(line.trim_end_matches(['\n', '\r']), args.max_tokens, &mut sampler, |piece| {
            if global.json {
                all.push_str(piece);
                return Ok(());
            }
            out.write_all(piece.as_bytes())?;
            Ok(out.flush()?)
        });
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
            let value = serde_json::json!({ "text": all, "end": stats.end.name(), "prompt_tokens": stats.prompt_tokens,
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
