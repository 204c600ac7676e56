//! What this program does when it is started as a guard, or as what becomes the command.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, setsid, wait};

use super::{GUARD, KILL, KILL_BOUND, LEADER, TERM, errno_name, inherited, send, this_program, tree};

/// Between TERM and KILL for what the command leaves behind.
const LINGER: Duration = Duration::from_secs(1);
/// What forks may have been missed by a kill, which is repeated.
const POLL_EVERY: Duration = Duration::from_millis(5);
/// Longer than any run.
const NEVER: Duration = Duration::from_secs(1 << 32);

/// Does what this program was started for if it is a stage of a guard, and returns whether it was.
pub fn run_if_stage() -> bool {
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    let args: Vec<OsString> = args.collect();
    match name.to_str() {
        Some(GUARD) if args.len() > 2 => {
            let _ = guard(&args); // an owner that is gone is noticed elsewhere
            true
        }
        Some(LEADER) if args.len() > 1 => {
            lead(&args);
            true
        }
        _ => false,
    }
}

/// Takes the socket that is the standard input of a stage, and the standard input proper from it.
fn take_socket() -> io::Result<(UnixStream, OwnedFd)> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut buffer = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&socket, &mut [IoSliceMut::new(&mut [0])], &mut buffer, RecvFlags::CMSG_CLOEXEC)?;
    let mut found = None;
    for message in buffer.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            found = descriptors.into_iter().next();
        }
    }
    found.map(|stdin| (socket, stdin)).ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))
}

/// Becomes the command.
fn lead(args: &[OsString]) {
    let Ok((mut socket, stdin)) = take_socket() else { return };
    let prepared = rustix::stdio::dup2_stdin(stdin).and_then(|()| setsid()).and_then(|_| tree::die_with_parent());
    let error = match prepared {
        Ok(()) => Command::new(&args[0]).arg0(&args[1]).args(&args[2..]).exec(),
        Err(errno) => errno.into(),
    };
    let _ = socket.write_all(errno_name(&error).as_bytes()); // or the guard is gone
}

enum News {
    Order(u8),
    Ended(Pid, WaitStatus),
    /// No child is left.
    AllGone,
}

/// Starts the command, and returns when nothing of it is left.
fn guard(args: &[OsString]) -> io::Result<()> {
    let (socket, stdin) = take_socket()?;
    setsid()?;
    tree::become_subreaper();
    let (ours, theirs) = UnixStream::pair()?;
    let spawned = this_program(LEADER)
        .args(&args[1..])
        .current_dir(&args[0])
        .stdin(OwnedFd::from(theirs))
        .stdout(inherited())
        .stderr(inherited())
        .spawn();
    let leader = match spawned {
        Ok(leader) => leader,
        Err(error) => return writeln!(&socket, "errno {}", errno_name(&error)),
    };
    send(&ours, &stdin)?;
    drop(stdin);
    // The pipes are the command's alone, so that readers see when it has ended.
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    let mut errno = String::new();
    let _ = (&ours).read_to_string(&mut errno); // it ends when the command begins
    if !errno.is_empty() {
        return writeln!(&socket, "errno {errno}");
    }
    let pid = Pid::from_child(&leader);
    writeln!(&socket, "pid {}", pid.as_raw_nonzero())?;
    let (sender, news) = mpsc::channel();
    let mut control = socket.try_clone()?;
    let orders = sender.clone();
    thread::spawn(move || {
        let mut order = [0];
        while matches!(control.read(&mut order), Ok(1)) {
            let _ = orders.send(News::Order(order[0])); // or the guard is ending
        }
        let _ = orders.send(News::Order(KILL)); // the owner is gone
    });
    // As a subreaper the guard is the parent of all orphans beneath it, so a wait that knows no child proves that none is
    // left.
    thread::spawn(move || {
        loop {
            let next = match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) => News::Ended(pid, status),
                Err(rustix::io::Errno::CHILD) => News::AllGone,
                Ok(None) | Err(_) => continue, // interrupted
            };
            let is_last = matches!(next, News::AllGone);
            if sender.send(next).is_err() || is_last {
                return;
            }
        }
    });
    let is_proven = keep(&socket, pid, &news);
    writeln!(&socket, "gone {is_proven}")
}

/// Passes orders on until everything has ended; returns whether it has.
fn keep(mut socket: &UnixStream, leader: Pid, news: &mpsc::Receiver<News>) -> bool {
    let mut is_killed = false;
    let mut ended_at: Option<Instant> = None;
    loop {
        let is_repeated = is_killed || ended_at.is_some();
        match news.recv_timeout(if is_repeated { POLL_EVERY } else { NEVER }) {
            Ok(News::Order(TERM)) => tree::terminate_group(leader),
            Ok(News::Order(_)) => {
                is_killed = true;
                tree::signal_all(leader, Signal::KILL);
            }
            Ok(News::Ended(pid, status)) if pid == leader => {
                let _ = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => writeln!(socket, "code {code}"),
                    (None, signal) => writeln!(socket, "signal {}", signal.unwrap_or_default()),
                };
                ended_at = Some(Instant::now());
                if !is_killed {
                    tree::signal_all(leader, Signal::TERM); // what it has left behind
                }
            }
            Ok(News::Ended(..)) => {}
            Ok(News::AllGone) if cfg!(target_os = "linux") => return true,
            Ok(News::AllGone) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) if is_killed || ended_at.is_some_and(|at| at.elapsed() >= LINGER) => {
                tree::signal_all(leader, Signal::KILL);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if ended_at.is_some_and(|at| at.elapsed() >= LINGER + KILL_BOUND)
            || (ended_at.is_some() && tree::is_gone(leader))
        {
            return tree::is_gone(leader);
        }
    }
}
