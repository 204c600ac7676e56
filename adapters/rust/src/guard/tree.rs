//! The processes beneath a guard.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Asks the command's process group to end, and wakes what was stopped.
pub fn terminate_group(leader: Pid) {
    let _ = kill_process_group(leader, Signal::TERM); // or it has ended
    let _ = kill_process_group(leader, Signal::CONT);
}

/// Wakes a process that was stopped.
pub fn wake(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::CONT); // or it has ended
    }
}

#[cfg(target_os = "linux")]
pub use linux::{become_subreaper, die_with_parent, is_gone, kill_marked, parent_of, signal_all};
#[cfg(not(target_os = "linux"))]
pub use other::{become_subreaper, die_with_parent, is_gone, kill_marked, parent_of, signal_all};

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::HashMap;
    use std::fs;

    use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper, set_parent_process_death_signal};

    use crate::guard::MARKER;

    /// Makes the guard the parent of all orphans beneath it, however often they forked and whichever session they moved to.
    pub fn become_subreaper() {
        let _ = set_child_subreaper(Some(getpid())); // every kernel since 3.4 has it
    }

    /// A command that kills its guard dies with it.
    pub fn die_with_parent() -> rustix::io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))
    }

    /// Returns false: that nothing is left is known by waiting.
    pub fn is_gone(_leader: Pid) -> bool {
        false
    }

    /// Signals everything beneath the guard, and wakes what was stopped.
    pub fn signal_all(_leader: Pid, signal: Signal) {
        for pid in descendants(getpid()) {
            let _ = kill_process(pid, signal); // or it has ended
            if signal != Signal::KILL {
                let _ = kill_process(pid, Signal::CONT);
            }
        }
    }

    /// Returns the processes beneath one, in no order.
    fn descendants(root: Pid) -> Vec<Pid> {
        let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
        for pid in pids() {
            if let Some(parent) = parent_of(pid) {
                children.entry(parent).or_default().push(pid);
            }
        }
        let mut found = Vec::new();
        let mut waiting = children.remove(&root).unwrap_or_default();
        while let Some(pid) = waiting.pop() {
            waiting.extend(children.remove(&pid).unwrap_or_default());
            found.push(pid);
        }
        found
    }

    fn pids() -> impl Iterator<Item = Pid> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw))
    }

    /// Returns the parent of a process; `None` if it is gone.
    pub fn parent_of(pid: Pid) -> Option<Pid> {
        let content = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        // The program's name stands in parentheses and may hold any byte.
        let end = content.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&content[end + 1..]).ok()?;
        rest.split_ascii_whitespace().nth(1)?.parse().ok().and_then(Pid::from_raw)
    }

    /// Kills the processes whose environment has the marker.
    pub fn kill_marked(marker: &str) {
        let needle = format!("{MARKER}={marker}");
        for pid in pids().filter(|pid| *pid != getpid()) {
            let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
            if environment.split(|byte| *byte == 0).any(|variable| variable == needle.as_bytes()) {
                let _ = kill_process(pid, Signal::KILL); // or it has ended
            }
        }
    }
}

/// Only Linux has subreapers and says who is whose parent: elsewhere what a command starts is found by its process group.
#[cfg(not(target_os = "linux"))]
mod other {
    use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

    pub fn become_subreaper() {}

    #[allow(clippy::unnecessary_wraps)]
    pub fn die_with_parent() -> rustix::io::Result<()> {
        Ok(())
    }

    pub fn is_gone(leader: Pid) -> bool {
        test_kill_process_group(leader).is_err()
    }

    pub fn signal_all(leader: Pid, signal: Signal) {
        let _ = kill_process_group(leader, signal);
        let _ = kill_process_group(leader, Signal::CONT);
    }

    pub fn parent_of(_pid: Pid) -> Option<Pid> {
        None
    }

    pub fn kill_marked(_marker: &str) {}
}
