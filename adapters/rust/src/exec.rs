//! Programs that a run starts.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::api::{
    FailureKind, Log, Outcome, OutputStream, Result as RunResult, RunPhase, Severity, Started, State as PhaseState,
};
use crate::core::{Core, Phase};
use crate::guard::{self, Orders, Started as Spawned};
use crate::lines::{MAX_LINE, Piece, Splitter};
use crate::redact::{MASK, names};
use crate::request::{check_directory, cut, environment};
use crate::run::{Failure, Run};

/// Bytes of lines in one log.
const MAX_JOINED: usize = 64 << 10;
/// Lines in one piece of output from which on they are joined: the program is ahead of us.
const JOINED_FROM: usize = 32;
const RAW_HEAD: usize = 16 << 10;
const RAW_TAIL: usize = 16 << 10;
const ERROR_TAIL: usize = 8 << 10;
/// That a program may live on after it has reported its end.
const LINGER_OF_DONE: Duration = Duration::from_secs(5);
/// Bytes of the last output in a message.
const SHOWN_TAIL: usize = 400;
/// Where programs are looked for if there is no `PATH`.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// That pipes stay open after all known writers are gone.
const PIPE_BOUND: Duration = Duration::from_secs(1);
const CHUNK: usize = 64 << 10;

/// A program to run.
#[derive(Clone, Debug, Default)]
pub struct Command {
    path: String,
    args: Vec<String>,
    stdin: Vec<u8>,
    env: BTreeMap<String, String>,
}

impl Command {
    /// Names the program: a name on the run's PATH, or an absolute path.
    pub fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Sets what the program reads; it is closed after it.
    #[must_use]
    pub fn stdin(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.stdin = data.into();
        self
    }

    /// Adds a variable beside those of the run; those of the settings and of the request win.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }
}

/// A line of a program's output.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line {
    /// Where it comes from.
    pub stream: OutputStream,
    /// Without its newline.
    pub data: Vec<u8>,
    /// Bytes that were cut from the end of a line that is too long.
    pub cut: u64,
    /// The stream ended without a newline after it.
    pub is_unterminated: bool,
}

/// A program that runs. Dropping it kills the program with all that it started.
pub struct Agent<'a> {
    run: &'a Run,
    chunks: Option<mpsc::Receiver<Vec<Line>>>,
    batch: VecDeque<Line>,
    supervisor: Option<JoinHandle<guard::End>>,
    done: Option<Arc<watch::Sender<bool>>>,
    exit: Exit,
}

impl<'a> Agent<'a> {
    pub(crate) async fn start(run: &'a Run, command: Command) -> io::Result<Self> {
        let core = &run.core;
        let temporary = run.dir()?.join("tmp");
        std::fs::create_dir_all(&temporary)?;
        let variables = environment_of(run, &command, &temporary.to_string_lossy());
        announce(run, &command, &variables);
        let exit = Exit { command: command.path.clone(), is_confirmed: true, ..Exit::default() };
        let mut agent = Self { run, chunks: None, batch: VecDeque::new(), supervisor: None, done: None, exit };
        if core.is_stopping() {
            agent.exit.was_stopped = true;
            return Ok(agent);
        }
        let directory = match run.settings.cwd.as_str() {
            "" => run.dir()?.to_string_lossy().into_owned(),
            cwd => cwd.to_owned(),
        };
        let argv = [vec![command.path], command.args].concat();
        match guard::start(&argv, &variables, &directory).await? {
            Spawned::Refused(errno) => {
                agent.exit.errno = Some(errno);
                agent.exit.is_lost = check_directory(&directory).is_some();
            }
            Spawned::Running(process) => agent.supervise(process, command.stdin)?,
        }
        Ok(agent)
    }

    fn supervise(&mut self, process: guard::Process, stdin: Vec<u8>) -> io::Result<()> {
        let core = &self.run.core;
        let guard::Process { pid, stdin: input, stdout, stderr, orders, reports } = process;
        let mut input = pipe::Sender::from_owned_fd(input)?;
        let (sender, chunks) = mpsc::channel(1);
        let exited = watch::Sender::new(false);
        for (stream, pipe) in [(OutputStream::Stdout, stdout), (OutputStream::Stderr, stderr)] {
            let pipe = pipe::Receiver::from_owned_fd(pipe)?;
            tokio::spawn(read(Arc::clone(core), stream, pipe, sender.clone(), exited.subscribe()));
        }
        let writing = tokio::spawn(async move {
            let _ = input.write_all(&stdin).await; // a program need not read it
        });
        {
            let mut guard = core.lock();
            guard.has_process = true;
            guard.is_piped = true;
            guard.captured = Captured::default();
            guard.clocks.start(Instant::now());
            let own = Some(i64::from(pid)).filter(|pid| *pid > 0);
            let phase = RunPhase::Running as i32;
            let mut state = PhaseState { phase, pid: own, process_group_id: own, ..PhaseState::default() };
            if own.is_some() {
                (state.host, state.pid_namespace) = place_of_processes();
            }
            core.phase(&mut guard, state);
        }
        core.awake();
        let done = Arc::new(watch::Sender::new(false));
        let keeper = tokio::spawn(keep(Arc::clone(core), orders, done.subscribe(), exited.subscribe()));
        let core = Arc::clone(core);
        self.done = Some(Arc::clone(&done));
        self.chunks = Some(chunks);
        self.supervisor = Some(tokio::spawn(async move {
            let on_exit = || {
                core.lock().clocks.are_off = true;
                core.is_stopping()
            };
            let end = reports.wait(&core.marker, on_exit).await;
            exited.send_replace(true);
            writing.abort();
            let _ = keeper.await; // it leaves when the program has exited
            core.lock().has_process = false;
            end
        }));
        Ok(())
    }

    /// Returns the next line of either stream; `None` when both are over.
    pub async fn next_line(&mut self) -> Option<Line> {
        if self.batch.is_empty() {
            self.join(false);
            self.batch = self.chunks.as_mut()?.recv().await?.into();
            self.join(self.batch.len() >= JOINED_FROM);
        }
        let line = self.batch.pop_front()?;
        if line.cut > 0 {
            self.run.core.lock().counters.dropped_bytes += line.cut;
            let message = format!("A line was longer than {MAX_LINE} bytes; {} bytes were cut.", line.cut);
            self.run.notice(Severity::Warning, "line_too_long", message);
        }
        Some(line)
    }

    /// Sets whether lines that are logged are joined from here on.
    fn join(&self, is_joining: bool) {
        let mut guard = self.run.core.lock();
        if guard.joined.is_joining != is_joining {
            self.run.core.flush_joined(&mut guard);
            guard.joined.is_joining = is_joining;
        }
    }

    /// Says that the program has reported its end: if it lives on, it is killed in a while, and no limit holds.
    pub fn done(&self) {
        if let Some(done) = &self.done {
            self.run.core.lock().clocks.are_off = true;
            done.send_replace(true);
        }
    }

    /// Waits until the program and all that it started is gone. Lines that were not taken are logged.
    pub async fn wait(mut self) -> Exit {
        while let Some(line) = self.next_line().await {
            self.run.log(line).await;
        }
        self.join(false);
        let Some(supervisor) = self.supervisor.take() else { return std::mem::take(&mut self.exit) };
        let end = supervisor.await.unwrap_or_default();
        let mut exit = std::mem::take(&mut self.exit);
        let mut guard = self.run.core.lock();
        self.run.core.flush_joined(&mut guard);
        exit.captured = std::mem::take(&mut guard.captured);
        exit.code = end.code;
        exit.signal = end.signal;
        exit.is_confirmed = end.is_proven;
        exit.was_stopped = end.was_stopped;
        exit
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        if let (Some(_), Some(done)) = (&self.supervisor, &self.done) {
            self.run.core.lock().clocks.are_off = true;
            done.send_replace(true); // it is killed after a while, if it does not end by itself
        }
    }
}

/// Ends the program when the run is to stop, or some time after the program has reported its end.
async fn keep(core: Arc<Core>, orders: Orders, mut done: watch::Receiver<bool>, mut exited: watch::Receiver<bool>) {
    let mut stopping = core.stopping.subscribe();
    let mut is_asked = false;
    let mut done_at: Option<Instant> = None;
    loop {
        let stop = *stopping.borrow_and_update();
        if stop.is_some() && !is_asked {
            is_asked = true;
            orders.terminate();
        }
        if *done.borrow_and_update() && done_at.is_none() {
            done_at = Some(Instant::now() + LINGER_OF_DONE);
        }
        let deadline = [stop.map(|stop| stop.deadline), done_at].into_iter().flatten().min();
        let now = Instant::now();
        if deadline.is_some_and(|deadline| deadline <= now) {
            orders.kill();
            if timeout(guard::STUCK_AFTER, over(&mut exited)).await.is_err() {
                orders.kill_guard();
            }
            return;
        }
        tokio::select! {
            _ = stopping.changed() => {}
            _ = done.changed(), if done_at.is_none() => {}
            () = over(&mut exited) => return,
            () = sleep_until(deadline.unwrap_or(now)), if deadline.is_some() => {}
        }
    }
}

/// Waits until the program has exited.
async fn over(exited: &mut watch::Receiver<bool>) {
    let _ = exited.wait_for(|is_over| *is_over).await; // or who knew it is gone
}

/// Cuts a stream into lines. The lines of one piece of output are handed over together.
async fn read(
    core: Arc<Core>,
    stream: OutputStream,
    mut pipe: pipe::Receiver,
    lines: mpsc::Sender<Vec<Line>>,
    mut exited: watch::Receiver<bool>,
) {
    let mut splitter = Splitter::default();
    let mut buffer = vec![0; CHUNK];
    let line = |piece: Piece, is_unterminated| Line { stream, data: piece.data, cut: piece.cut, is_unterminated };
    loop {
        // What the program wrote is read to its end, unless a process outside holds a pipe open.
        let read = tokio::select! {
            biased;
            read = pipe.read(&mut buffer) => read,
            () = over(&mut exited) => timeout(PIPE_BOUND, pipe.read(&mut buffer)).await.unwrap_or(Ok(0)),
        };
        let Ok(size @ 1..) = read else { break };
        let kept = core.counted(stream, size);
        let whole: Vec<Line> = splitter.feed(&buffer[..kept]).into_iter().map(|piece| line(piece, false)).collect();
        if !whole.is_empty() && lines.send(whole).await.is_err() {
            break; // its adapter has ended, and the program will
        }
    }
    if let Some(mut rest) = splitter.finish() {
        if core.lock().is_cut {
            // By the limit of output, which may have cut a secret in two.
            let text = String::from_utf8_lossy(&rest.data).into_owned();
            rest.data = core.without_half(&text).as_bytes().to_vec();
        }
        let _ = lines.send(vec![line(rest, true)]).await; // as above
    }
}

/// Returns all variables of the program.
/// Returns where a process ID of this process means something: the machine's name, and the PID namespace on Linux.
fn place_of_processes() -> (String, Option<u64>) {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let number = link.to_str().and_then(|text| text.strip_prefix("pid:[")?.strip_suffix(']'));
    (host, number.and_then(|text| text.parse().ok()))
}

fn environment_of(run: &Run, command: &Command, temporary: &str) -> BTreeMap<String, String> {
    let own =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut all = environment::inherited(own, environment::prefix(&run.request));
    all.extend(environment::run_variables(&run.request));
    all.insert("TMPDIR".to_owned(), temporary.to_owned());
    all.extend(run.core.span.trace.variables());
    all.extend(command.env.clone());
    all.extend(run.settings.env.clone());
    all.extend(run.request.env.clone());
    if all.get("PATH").is_none_or(String::is_empty) {
        all.insert("PATH".to_owned(), DEFAULT_PATH.to_owned());
    }
    all.insert(guard::MARKER.to_owned(), run.core.marker.clone());
    all
}

/// Opens the attempt, unless that was done.
fn announce(run: &Run, command: &Command, variables: &BTreeMap<String, String>) {
    let mut guard = run.core.lock();
    if guard.phase != Phase::Initial {
        return;
    }
    let mut env = BTreeMap::new();
    for (name, value) in variables {
        let is_requested = run.request.env.contains_key(name);
        let is_inherited = !is_requested && std::env::var(name).is_ok_and(|own| own == *value);
        if name == guard::MARKER || is_inherited {
            continue;
        }
        // Events show the names of variables that may be secret, never their values.
        let is_hidden = is_requested || names::is_secret_entry(name, value);
        let shown = if is_hidden { MASK.to_owned() } else { run.core.redactor.text(value).into_owned() };
        env.insert(name.clone(), shown);
    }
    let argv =
        std::iter::once(&command.path).chain(&command.args).map(|arg| without_prompt(arg, run.prompt())).collect();
    run.core.start(&mut guard, Started { command: command.path.clone(), argv, env, ..Started::default() });
}

/// Returns an argument with the prompt replaced by its length.
fn without_prompt(argument: &str, prompt: &str) -> String {
    let mask = format!("[prompt: {} bytes]", prompt.len());
    match prompt.len() {
        0 => argument.to_owned(),
        _ if argument == prompt => mask,
        1..=8 => argument.to_owned(), // a short one may be in other arguments by chance
        _ => argument.replace(prompt, &mask),
    }
}

/// Lines of one stream that go into one log.
#[derive(Default)]
pub struct Joined {
    is_joining: bool,
    entry: Option<Log>,
}

impl Joined {
    pub fn take(&mut self) -> Option<Log> {
        self.entry.take()
    }
}

impl Core {
    pub(crate) fn log_line(&self, line: Line) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let (text, raw) = match String::from_utf8(line.data) {
            Ok(text) => (text, Vec::new()),
            Err(error) => {
                let raw = error.into_bytes();
                (String::from_utf8_lossy(&raw).into_owned(), raw)
            }
        };
        let is_whole = raw.is_empty() && !line.is_unterminated && line.cut == 0;
        let stream = line.stream as i32;
        if let Some(last) = state.joined.entry.as_mut().filter(|last| is_whole && last.stream == stream)
            && last.text.len() + text.len() < MAX_JOINED
        {
            last.text.push('\n');
            last.text.push_str(&text);
            return;
        }
        self.flush_joined(state);
        let unterminated = line.is_unterminated;
        state.joined.entry = Some(Log { stream, text, raw, truncated_bytes: line.cut, unterminated });
        if !is_whole || !state.joined.is_joining {
            self.flush_joined(state);
        }
    }
}

/// What is kept of output that was logged.
#[derive(Default)]
pub struct Captured {
    head: String,
    tail: String,
    stderr: String,
}

impl Captured {
    pub fn add(&mut self, stream: i32, text: &str) {
        let line = format!("{text}\n");
        if stream == OutputStream::Stderr as i32 {
            append(&mut self.stderr, &line, ERROR_TAIL);
            return;
        }
        let kept = if self.tail.is_empty() { cut(&line, RAW_HEAD - self.head.len()).len() } else { 0 };
        self.head.push_str(&line[..kept]);
        append(&mut self.tail, &line[kept..], RAW_TAIL);
    }
}

/// Appends to a text of which the last bytes are kept.
fn append(tail: &mut String, text: &str, most: usize) {
    tail.push_str(text);
    if tail.len() > 2 * most {
        let excess = tail.ceil_char_boundary(tail.len() - most);
        tail.drain(..excess);
    }
}

fn end_of(text: &str, most: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(most))..]
}

/// How a program ended, and what is known of why.
#[derive(Default)]
pub struct Exit {
    /// `None` if a signal ended it, or it did not run.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The name of the error if the program could not be started, e.g. "ENOENT".
    pub errno: Option<String>,
    /// Nothing that the program started is left.
    pub is_confirmed: bool,
    command: String,
    /// The working directory is gone.
    is_lost: bool,
    was_stopped: bool,
    captured: Captured,
}

impl Exit {
    /// Returns what the program's end means: code 0 is success. The run's own limits and cancellation come on top.
    #[must_use]
    pub fn result(&self) -> RunResult {
        let is_success = self.code == Some(0) && !self.was_stopped;
        RunResult {
            outcome: if is_success { Outcome::Succeeded } else { Outcome::Failed } as i32,
            exit_code: self.code,
            signal: self.signal.map_or_else(String::new, signal_name),
            tree_confirmed_dead: Some(self.is_confirmed),
            failure: (!is_success).then(|| self.failure().into()),
            ..RunResult::default()
        }
    }

    fn failure(&self) -> Failure {
        let command = &self.command;
        if self.is_lost {
            let message = "The working directory was removed before the agent was started.";
            return Failure::new(FailureKind::WorkspaceFailed, "cwd_absent", message);
        }
        match self.errno.as_deref() {
            Some("ENOENT") => {
                let message = format!(
                    "{command} was not found on the run's PATH: that of the request's env, else of the adapter. \
                     Install it there, or name its path."
                );
                return Failure::new(FailureKind::NotInstalled, "command_not_found", message);
            }
            Some(errno) => {
                let message = format!("{command} could not be started ({errno}).");
                return Failure::new(FailureKind::SpawnFailed, format!("spawn_{}", errno.to_lowercase()), message);
            }
            None => {}
        }
        let Captured { head, tail, stderr } = &self.captured;
        let all = format!("{head}{tail}");
        let last = if stderr.trim().is_empty() { all.trim() } else { stderr.trim() };
        let last =
            if last.is_empty() { String::new() } else { format!(" Its last output: {}", end_of(last, SHOWN_TAIL)) };
        let (code, message) = match (self.signal, self.code) {
            (Some(signal), _) => ("signal", format!("The agent was ended by {}.{last}", signal_name(signal))),
            (None, Some(code)) => ("exit_code", format!("The agent exited with code {code}.{last}")),
            (None, None) => ("vanished", format!("The agent is gone; its exit was not observed.{last}")),
        };
        Failure::new(FailureKind::ProcessCrashed, code, message)
    }
}

fn signal_name(number: i32) -> String {
    let name = match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        _ => return format!("signal {number}"),
    };
    name.to_owned()
}
