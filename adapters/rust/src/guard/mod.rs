//! Runs a command under a process of its own, the guard, which ends the command with all that it started: when it is asked
//! to, when the command ends, and when the guard's owner is gone.
//!
//! The guard is this very program, started again under another name, so an adapter is one file. It starts this program a
//! second time, which becomes the command once it has its own session and dies with the guard. Each of the two gets a Unix
//! socket as its standard input, and the standard input proper through it.

mod stages;
mod tree;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};

pub use stages::run_if_stage;
pub use tree::parent_of;

use crate::sync::lock;

/// The environment variable that marks all processes of a run.
pub const MARKER: &str = "DRAGOMAN_RUN_MARKER";
/// How long after a kill a guard has ended, or is killed itself.
pub const STUCK_AFTER: Duration = KILL_BOUND.saturating_add(Duration::from_secs(3));

/// After which the guard gives up: a process that is stuck in the kernel.
const KILL_BOUND: Duration = Duration::from_secs(5);
const GUARD: &str = "dragoman-guard";
const LEADER: &str = "dragoman-leader";
const TERM: u8 = b't';
const KILL: u8 = b'k';

/// What became of a start.
pub enum Started {
    /// The command itself cannot be started, by the name of an errno, e.g. "ENOENT".
    Refused(String),
    Running(Process),
}

/// A command under its guard.
pub struct Process {
    /// 0 if the command killed its guard at once; then the reports say that it is gone.
    pub pid: i32,
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    pub orders: Orders,
    pub reports: Reports,
}

/// How a command ended.
#[derive(Default)]
pub struct End {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Nothing that it started is left.
    pub is_proven: bool,
    /// It was to stop when it ended.
    pub was_stopped: bool,
}

/// Starts a command with a whole environment, which has the marker.
pub async fn start(argv: &[String], env: &BTreeMap<String, String>, directory: &str) -> io::Result<Started> {
    let Some(program) = place_of(&argv[0], env.get("PATH").map_or("", String::as_str)) else {
        return Ok(Started::Refused("ENOENT".to_owned()));
    };
    let (stdin, input) = io::pipe()?;
    let (output, stdout) = io::pipe()?;
    let (errors, stderr) = io::pipe()?;
    let (ours, theirs) = UnixStream::pair()?;
    let spawned = this_program(GUARD)
        .arg(directory)
        .arg(program)
        .args(argv)
        .env_clear()
        .envs(env)
        .current_dir("/")
        .stdin(OwnedFd::from(theirs))
        .stdout(stdout)
        .stderr(stderr)
        .spawn();
    let guard = match spawned {
        Ok(guard) => guard,
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::TOOBIG.raw_os_error()) => {
            return Ok(Started::Refused("E2BIG".to_owned()));
        }
        Err(error) => return Err(error),
    };
    let guard = Arc::new(Mutex::new(guard));
    send(&ours, &stdin)?;
    drop(stdin);
    ours.set_nonblocking(true)?;
    let orders = Orders { socket: ours.try_clone()?, guard: Arc::clone(&guard) };
    let lines = BufReader::new(tokio::net::UnixStream::from_std(ours)?).lines();
    let mut reports = Reports { lines, guard };
    let first = reports.next().await.unwrap_or_default();
    if let Some(errno) = first.strip_prefix("errno ") {
        reports.reap().await;
        return Ok(Started::Refused(errno.to_owned()));
    }
    let pid = first.strip_prefix("pid ").and_then(|pid| pid.parse().ok()).unwrap_or_default();
    let (stdin, stdout, stderr) = (input.into(), output.into(), errors.into());
    Ok(Started::Running(Process { pid, stdin, stdout, stderr, orders, reports }))
}

/// What is said to a guard.
pub struct Orders {
    socket: UnixStream,
    guard: Arc<Mutex<Child>>,
}

impl Orders {
    /// Asks the command to end.
    pub fn terminate(&self) {
        self.order(TERM);
    }

    /// Ends the command and everything beneath it, now. Harmless when it has ended.
    pub fn kill(&self) {
        self.order(KILL);
        tree::wake(lock(&self.guard).id()); // a command may have stopped its guard
    }

    /// Kills the guard itself, which is stuck.
    pub fn kill_guard(&self) {
        let _ = lock(&self.guard).kill(); // or it has ended
    }

    fn order(&self, order: u8) {
        let _ = (&self.socket).write(&[order]); // a guard that has ended needs no orders
    }
}

/// What a guard says.
pub struct Reports {
    lines: Lines<BufReader<tokio::net::UnixStream>>,
    guard: Arc<Mutex<Child>>,
}

impl Reports {
    async fn next(&mut self) -> Option<String> {
        self.lines.next_line().await.ok().flatten()
    }

    /// Waits until the command and everything beneath it is gone. `on_exit` is called once the command itself has ended, and
    /// says whether it was to.
    pub async fn wait(mut self, marker: &str, on_exit: impl Fn() -> bool) -> End {
        let mut end = End::default();
        let (mut has_exited, mut is_gone) = (false, false);
        while let Some(report) = self.next().await {
            match report.split_once(' ') {
                Some(("gone", proven)) => {
                    is_gone = true;
                    end.is_proven = proven == "true";
                }
                Some((kind @ ("code" | "signal"), number)) => {
                    let number = number.parse().ok();
                    if kind == "code" {
                        end.code = number
                    } else {
                        end.signal = number
                    }
                    has_exited = true;
                    end.was_stopped = on_exit();
                }
                _ => {}
            }
        }
        self.reap().await;
        if !is_gone {
            tree::kill_marked(marker); // the guard was killed, and the processes have lost their keeper
        }
        if !has_exited {
            end.was_stopped = on_exit();
        }
        end
    }

    async fn reap(&self) {
        let guard = Arc::clone(&self.guard);
        // It has closed its socket, and is about to end.
        let _ = tokio::task::spawn_blocking(move || lock(&guard).wait()).await;
    }
}

/// Returns this program under another name.
fn this_program(name: &str) -> Command {
    // Also if the file was replaced meanwhile.
    let own =
        if cfg!(target_os = "linux") { Some(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe().ok() };
    let mut command = Command::new(own.unwrap_or_default());
    command.arg0(name);
    command
}

/// Sends a descriptor through a socket.
fn send(socket: &UnixStream, descriptor: &impl AsFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut buffer = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    buffer.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(socket, &[IoSlice::new(b"s")], &mut buffer, SendFlags::empty())?;
    Ok(())
}

/// Returns the path of a program that is found in a PATH, or is a path; `None` if it is not there.
#[must_use]
pub fn look_path(program: &str, path: &str) -> Option<PathBuf> {
    place_of(program, path).filter(|found| is_executable(found))
}

/// Returns where a program is to be started: a path is taken as it is, as the start says best what is wrong with it.
fn place_of(program: &str, path: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program));
    }
    let directories = path.split(':').map(Path::new).filter(|directory| directory.is_absolute());
    directories.map(|directory| directory.join(program)).find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn errno_name(error: &io::Error) -> &'static str {
    use rustix::io::Errno;
    let names = [
        (Errno::NOENT, "ENOENT"),
        (Errno::ACCESS, "EACCES"),
        (Errno::NOEXEC, "ENOEXEC"),
        (Errno::TOOBIG, "E2BIG"),
        (Errno::NOTDIR, "ENOTDIR"),
        (Errno::MFILE, "EMFILE"),
        (Errno::NOMEM, "ENOMEM"),
        (Errno::AGAIN, "EAGAIN"),
        (Errno::LOOP, "ELOOP"),
        (Errno::ISDIR, "EISDIR"),
        (Errno::TXTBSY, "ETXTBSY"),
        (Errno::PERM, "EPERM"),
        (Errno::NAMETOOLONG, "ENAMETOOLONG"),
    ];
    let found = names.iter().find(|(errno, _)| error.raw_os_error() == Some(errno.raw_os_error()));
    found.map_or("EIO", |(_, name)| name)
}

fn inherited() -> Stdio {
    Stdio::inherit()
}
