import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";

import { MARKER } from "./environment.js";

// Reads "+ PID MARKER" and "- PID MARKER". When its input ends and programs are left, this process is gone, and they
// are killed with all that they started.
const SCRIPT = `
live=
while read -r op pid marker; do
  case $op in
    +) live="$live $pid:$marker" ;;
    -) next=; for one in $live; do [ "$one" = "$pid:$marker" ] || next="$next $one"; done; live=$next ;;
  esac
done
for one in $live; do kill -KILL -- "-\${one%%:*}" 2>/dev/null; done
for one in $live; do
  for file in /proc/[0-9]*/environ; do
    if tr '\\0' '\\n' 2>/dev/null <"$file" | grep -qx "${MARKER}=\${one#*:}"; then
      pid=\${file#/proc/}
      kill -KILL "\${pid%/environ}" 2>/dev/null
    fi
  done
done
`;

/** A shell that outlives this process, and ends its programs if it was killed. */
export class Sentinel {
  #shell: ChildProcess | undefined;

  /** Takes note of a program that leads a process group. */
  add(pid: number, marker: string): void {
    this.#write(`+ ${pid} ${marker}\n`);
  }

  /** The program is gone, with all that it started. */
  remove(pid: number, marker: string): void {
    this.#write(`- ${pid} ${marker}\n`);
  }

  /** Ends the shell. */
  async close(): Promise<void> {
    const shell = this.#shell;
    if (!shell || shell.exitCode !== null || shell.signalCode !== null) return;
    shell.ref(); // or this process could end while it waits
    const ended = once(shell, "exit");
    shell.stdin?.end();
    await ended;
  }

  #write(line: string): void {
    if (!this.#shell) {
      // In a session of its own, so that a signal to this process's group does not end it.
      this.#shell = spawn("/bin/sh", ["-c", SCRIPT], {
        detached: true,
        stdio: ["pipe", "ignore", "ignore"],
        cwd: "/",
        env: { PATH: "/usr/bin:/bin" },
      });
      this.#shell.on("error", () => {}); // without it, programs outlive a process that is killed
      this.#shell.stdin?.on("error", () => {}); // as above
      this.#shell.unref();
    }
    this.#shell.stdin?.write(line);
  }
}
