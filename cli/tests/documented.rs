//! Every `tl` command that the documentation shows, in blocks and in running text, is one that `tl` understands: names, options, arguments.

use std::path::Path;
use std::process::{Command, Stdio};

/// The pages: the guide, those beside it, and the two at the top. Notes are dated: their commands are those of their time.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let in_folder = |folder: &str| {
        let files = std::fs::read_dir(root.join(folder)).unwrap().map(|e| e.unwrap().path());
        let mut names: Vec<String> = files.filter_map(|p| Some(p.file_name()?.to_str()?.to_string())).collect();
        names.retain(|n| n.ends_with(".md"));
        names.sort();
        names.into_iter().map(|n| format!("{folder}/{n}")).collect::<Vec<_>>()
    };
    let names = [in_folder("docs/guide"), in_folder("docs"), vec!["README.md".into(), "CHANGELOG.md".into()]].concat();
    let read = |name: &String| std::fs::read_to_string(root.join(name)).unwrap();
    names.into_iter().map(|name| (name.clone(), read(&name))).collect()
}

/// The lines of a page's blocks of commands, and what its text has in backticks.
fn pieces(page: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for (n, part) in page.split("```").enumerate() {
        match (n % 2, part.split_once('\n')) {
            (1, Some(("sh" | "text" | "bash" | "console" | "", body))) => out.extend(body.lines().map(str::to_string)),
            (1, _) => {}
            _ => out.extend(part.split('`').skip(1).step_by(2).map(|quote| quote.split_whitespace().collect::<Vec<_>>().join(" "))),
        }
    }
    out
}

/// The words of the commands of a line of a shell behind `tl`, without quotes, comments and where their output goes. An ellipsis is no command.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands: Vec<Vec<String>> = vec![Vec::new()];
    let (mut word, mut quote, mut spaces) = (String::new(), None, 0);
    for c in line.trim().chars().chain([' ']) {
        match (quote, c) {
            (Some(q), _) if c == q => quote = None,
            (Some(_), _) => word.push(c),
            (None, '"' | '\'') => quote = Some(c),
            (None, ' ') if word.is_empty() => spaces += 1,
            (None, ' ') => {
                let done = std::mem::take(&mut word);
                spaces = 1;
                match done.as_str() {
                    "&&" | "|" | ";" | "&" => commands.push(Vec::new()),
                    "#" => break,
                    _ => commands.last_mut().unwrap().push(done),
                }
            }
            // A comment beside the command.
            (None, _) if word.is_empty() && spaces > 1 && !commands.concat().is_empty() => break,
            (None, _) => word.push(c),
        }
    }
    let of_tl = |words: Vec<String>| {
        let settings = words
            .iter()
            .take_while(|w| w.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_')));
        let at = settings.count();
        let is_tl = words.get(at).is_some_and(|w| w == "tl") && !words.iter().any(|w| w.contains('…'));
        is_tl.then(|| words[at + 1..].iter().take_while(|w| *w != ">").cloned().collect::<Vec<_>>())
    };
    commands.into_iter().filter_map(of_tl).filter(|words| !words.is_empty()).collect()
}

/// What is wrong with a command: it is read up to `--help`, and not run. Words in capitals stand for what the user gives.
fn wrong(words: &[String]) -> Option<String> {
    let is_given = |w: &str| !w.is_empty() && w.chars().all(|c| c.is_ascii_uppercase());
    // What follows is another program's.
    let own = words.iter().take_while(|w| !["--while", "--"].contains(&w.as_str()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
    command.args(own.map(|w| if is_given(w) { "1" } else { w })).arg("--help").env("TL_OFFLINE", "1").stdin(Stdio::null());
    let output = command.output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap().lines().next().unwrap_or_default().to_string();
    // An option whose value the text leaves out, or whose value is not a number.
    let exists = error.contains("a value is required for") || error.contains("invalid value '1' for");
    (!output.status.success() && !exists).then_some(error)
}

#[test]
fn every_command_of_the_documentation_is_understood() {
    let (mut seen, mut failed) = (0, Vec::new());
    for (name, page) in pages() {
        for words in pieces(&page).iter().flat_map(|piece| commands(piece)) {
            seen += 1;
            failed.extend(wrong(&words).map(|error| format!("{name}: tl {}: {error}", words.join(" "))));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(seen > 200, "only {seen} commands were found");
}

#[test]
fn commands_that_do_not_exist_are_found() {
    let of = |line: &str| commands(line).into_iter().map(|words| words.join("|")).collect::<Vec<_>>();
    assert_eq!(of("A_B=c tl top run.json  # what it is && tl x"), ["top|run.json"]);
    assert_eq!(of("cat *.md > t.txt && tl embed \"a cat\" -f t | tl top"), ["embed|a cat|-f|t", "top"]);
    assert_eq!(of("tl serve                   the default model"), ["serve"]);
    assert_eq!(of("tl bench … --json x, cargo tl"), Vec::<String>::new());
    for line in ["tl plam MODEL", "tl devices MODEL", "tl plan --contxt N", "tl bench dtype MODEL"] {
        assert!(wrong(&commands(line)[0]).is_some(), "{line}");
    }
    for line in ["tl plan MODEL --ctx N", "tl train --dropout", "tl generate --strategy NAME", "tl doctor --while sleep 1000"] {
        assert_eq!(wrong(&commands(line)[0]), None, "{line}");
    }
}
