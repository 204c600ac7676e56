/**
 * The skills of a run: checked, and laid out as files where an agent finds them. They come from elsewhere: no name, path
 * or link in one may lead out of it.
 */
import type { Violation } from "@dragoman/client";
import type { Skill as Asked } from "@dragoman/client/v1";
import { lstatSync, mkdirSync, readdirSync, realpathSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, isAbsolute, join, sep } from "node:path";

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;
const DOCUMENT = "SKILL.md";
const MOST_ENTRIES = 20_000;

/** A skill, where it is or as its files. */
export interface Skill {
  name: string;
  /** Absolute; absent if there is nothing but `files`. */
  directory?: string;
  /** Content by relative path; empty for one that is in a directory. */
  files: Record<string, Uint8Array>;
}

/** A skill that cannot be used, and why. */
class SkillError extends Error {}

/** Returns the skills of a request, and what is wrong with the others. */
export function readSkills(asked: readonly Asked[]): { skills: Skill[]; wrong: Violation[] } {
  const skills: Skill[] = [];
  const wrong: Violation[] = [];
  const seen = new Set<string>();
  asked.forEach((one, i) => {
    try {
      const folded = one.name.toLowerCase(); // some file systems do not distinguish them
      if (seen.has(folded)) wrong.push({ field: `skills[${i}].name`, description: "names are unique" });
      seen.add(folded);
      skills.push(readSkill(one));
    } catch (error) {
      if (!(error instanceof SkillError)) throw error;
      wrong.push({ field: `skills[${i}]`, description: error.message });
    }
  });
  return { skills, wrong };
}

function readSkill({ name, source }: Asked): Skill {
  if (!NAME.test(name)) {
    const rule = "at most 128 letters, digits, '.', '_' and '-', the first a letter or a digit";
    throw new SkillError(`${JSON.stringify(name.slice(0, 80))} cannot be the name of a skill: ${rule}`);
  }
  if (source.case === "files") {
    const files = source.value.content;
    const strange = Object.keys(files).find((path) => !isPlain(path));
    if (strange !== undefined)
      throw new SkillError(
        `a file of the skill ${name} has a path that is not plain and relative: ${JSON.stringify(strange.slice(0, 80))}`,
      );
    if (!(DOCUMENT in files)) throw new SkillError(`the skill ${name} has no ${DOCUMENT}`);
    return { name, files };
  }
  if (source.case !== "directory") throw new SkillError("give its directory or its files");
  if (!isAbsolute(source.value)) throw new SkillError(`the directory of the skill ${name} is not an absolute path`);
  lookOver(source.value, name);
  return { name, directory: source.value, files: {} };
}

function isPlain(path: string): boolean {
  return !/[\0\\]/.test(path) && path.split("/").every((part) => !["", ".", ".."].includes(part));
}

/** Looks for links that lead out of a skill, and for its document. */
function lookOver(directory: string, name: string): void {
  try {
    const root = realpathSync(directory);
    const entries = readdirSync(root, { recursive: true, encoding: "utf8" });
    if (entries.length > MOST_ENTRIES) throw new SkillError(`the skill ${name} has more than ${MOST_ENTRIES} files`);
    for (const entry of entries) {
      const path = join(root, entry);
      if (lstatSync(path).isSymbolicLink() && !`${realpathSync(path)}${sep}`.startsWith(`${root}${sep}`))
        throw new SkillError(`${entry} in the skill ${name} is a link that leads out of it`);
    }
    if (!statSync(join(root, DOCUMENT), { throwIfNoEntry: false })?.isFile())
      throw new SkillError(`the skill ${name} has no ${DOCUMENT}`);
  } catch (error) {
    if (error instanceof SkillError) throw error;
    throw new SkillError(`the skill ${name} cannot be read: ${(error as NodeJS.ErrnoException).code}`);
  }
}

/**
 * Lays skills out below a directory: one that is in a directory becomes a link to it, the others are written.
 *
 * @param layout where one goes, e.g. ".claude/skills/{name}"
 */
export function layOut(root: string, skills: readonly Skill[], layout: string): void {
  for (const { name, directory, files } of skills) {
    const place = join(root, layout.replaceAll("{name}", name));
    if (directory !== undefined) {
      mkdirSync(dirname(place), { recursive: true, mode: 0o700 });
      symlinkSync(directory, place);
    }
    for (const [path, content] of Object.entries(files)) {
      const target = join(place, path);
      mkdirSync(dirname(target), { recursive: true, mode: 0o700 });
      const isScript = Buffer.from(content.subarray(0, 2)).toString() === "#!";
      writeFileSync(target, content, { mode: isScript ? 0o700 : 0o600, flag: "wx" });
    }
  }
}
