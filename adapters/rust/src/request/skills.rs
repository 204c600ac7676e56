//! The skills of a run: checked, and laid out as files where an agent finds them. They come from elsewhere: no name, path or
//! link in one may lead out of it.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::api::Skill as Asked;
use crate::api::skill::Source;
use crate::reason::Violation;
use crate::request::cut;

const DOCUMENT: &str = "SKILL.md";
const LONGEST_NAME: usize = 128;
const MOST_ENTRIES: usize = 20_000;

/// A skill, where it is or as its files.
pub struct Skill {
    name: String,
    content: Content,
}

enum Content {
    Directory(PathBuf),
    Files(BTreeMap<String, Vec<u8>>),
}

/// Returns the skills of a request, and what is wrong with the others.
pub fn read(asked: &[Asked]) -> (Vec<Skill>, Vec<Violation>) {
    let (mut skills, mut wrong) = (Vec::new(), Vec::new());
    for (number, one) in asked.iter().enumerate() {
        // Some file systems do not distinguish them.
        if asked[..number].iter().any(|other| other.name.eq_ignore_ascii_case(&one.name)) {
            wrong.push(Violation::new(format!("skills[{number}].name"), "names are unique"));
        }
        match read_one(one) {
            Ok(skill) => skills.push(skill),
            Err(problem) => wrong.push(Violation::new(format!("skills[{number}]"), problem)),
        }
    }
    (skills, wrong)
}

fn read_one(asked: &Asked) -> Result<Skill, String> {
    let name = asked.name.clone();
    let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let is_name = name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_inner);
    if !is_name || name.len() > LONGEST_NAME {
        return Err(format!(
            "{:?} cannot be the name of a skill: at most {LONGEST_NAME} letters, digits, '.', '_' and '-', the first a \
             letter or a digit",
            cut(&name, 80)
        ));
    }
    let content = match &asked.source {
        Some(Source::Files(files)) => {
            if let Some(strange) = files.content.keys().find(|path| !is_plain(path)) {
                let shown = cut(strange, 80);
                return Err(format!("a file of the skill {name} has a path that is not plain and relative: {shown:?}"));
            }
            if !files.content.contains_key(DOCUMENT) {
                return Err(format!("the skill {name} has no {DOCUMENT}"));
            }
            Content::Files(files.content.clone())
        }
        Some(Source::Directory(directory)) => {
            let directory = PathBuf::from(directory);
            if !directory.is_absolute() {
                return Err(format!("the directory of the skill {name} is not an absolute path"));
            }
            look_over(&directory, &name)?;
            Content::Directory(directory)
        }
        None => return Err("give its directory or its files".to_owned()),
    };
    Ok(Skill { name, content })
}

fn is_plain(path: &str) -> bool {
    !path.contains(['\0', '\\']) && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Looks for links that lead out of a skill, and for its document.
fn look_over(directory: &Path, name: &str) -> Result<(), String> {
    let unreadable = |error: io::Error| format!("the skill {name} cannot be read: {error}");
    let root = fs::canonicalize(directory).map_err(unreadable)?;
    let mut folders = vec![root.clone()];
    let mut entries = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(unreadable)?);
            entries += 1;
            if entries > MOST_ENTRIES {
                return Err(format!("the skill {name} has more than {MOST_ENTRIES} files"));
            }
            if kind.is_symlink() && !fs::canonicalize(&path).map_err(unreadable)?.starts_with(&root) {
                let shown = path.strip_prefix(&root).unwrap_or(&path).display();
                return Err(format!("{shown} in the skill {name} is a link that leads out of it"));
            }
            if kind.is_dir() {
                folders.push(path);
            }
        }
    }
    if root.join(DOCUMENT).is_file() { Ok(()) } else { Err(format!("the skill {name} has no {DOCUMENT}")) }
}

/// Lays skills out below a directory: one that is in a directory becomes a link to it, the others are written. `layout` is
/// where one goes, e.g. ".claude/skills/{name}".
pub fn lay_out(root: &Path, skills: &[Skill], layout: &str) -> io::Result<()> {
    for skill in skills {
        let place = root.join(layout.replace("{name}", &skill.name));
        match &skill.content {
            Content::Directory(directory) => {
                make_parents(&place)?;
                symlink(directory, &place)?;
            }
            Content::Files(files) => {
                for (path, content) in files {
                    let target = place.join(path);
                    make_parents(&target)?;
                    let mode = if content.starts_with(b"#!") { 0o700 } else { 0o600 };
                    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(target)?;
                    file.write_all(content)?;
                }
            }
        }
    }
    Ok(())
}

fn make_parents(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path.parent().unwrap_or(path))
}
