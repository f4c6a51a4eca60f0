//! The mount table of a process: `/proc/self/mountinfo`, parsed.
//!
//! Source: <https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html>.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount's number, as `statx` reports it.
    pub id: u64,
    /// The number of the mount this one stands on.
    pub parent: u64,
    /// The major device number; 0 where no block device is behind the filesystem.
    pub major: u32,
    /// The folder of the filesystem that is mounted here: not `/` for a bind mount of a folder.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The filesystem type, with the subtype after a dot where the kernel tells it (`fuse.sshfs`).
    pub fs_type: String,
    /// What is mounted: a device, `host:/export`, or whatever the filesystem calls it.
    pub source: String,
    /// The options of the superblock, commas and all.
    pub super_options: String,
}

impl Mount {
    /// Return the value of `name=value` among the superblock's options, its escapes undone.
    pub fn option(&self, name: &str) -> Option<String> {
        split_options(&self.super_options)
            .into_iter()
            .find_map(|option| option.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
    }
}

/// Parse a mount table. Lines that are not as the manual has them are left out.
pub fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty()).collect();
    // Six fields, any number of optional ones, a hyphen, three more.
    let dash = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    let [fs_type, source, rest @ ..] = fields.get(dash + 1..)? else { return None };
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let number = |field: &[u8]| text(field).parse::<u64>().ok();
    Some(Mount {
        id: number(fields[0])?,
        parent: number(fields[1])?,
        major: text(fields[2]).split_once(':')?.0.parse().ok()?,
        root: PathBuf::from(OsString::from_vec(unescape(fields[3]))),
        mount_point: PathBuf::from(OsString::from_vec(unescape(fields[4]))),
        fs_type: text(&unescape(fs_type)),
        source: text(&unescape(source)),
        super_options: rest.first().map(|options| text(&unescape(options))).unwrap_or_default(),
    })
}

/// Undo the kernel's octal escapes: space, tab, newline, backslash and `#` come as `\040` and so on.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        if let [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] = field[at..] {
            bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            at += 4;
        } else {
            bytes.push(field[at]);
            at += 1;
        }
    }
    bytes
}

/// Split options at the commas that no backslash escapes, as overlay writes a comma in a folder's name.
fn split_options(options: &str) -> Vec<String> {
    let mut split = vec![String::new()];
    let mut characters = options.chars();
    while let Some(character) = characters.next() {
        match (character, split.last_mut()) {
            (',', _) => split.push(String::new()),
            ('\\', Some(last)) => last.extend(characters.next()),
            (other, Some(last)) => last.push(other),
            (_, None) => {}
        }
    }
    split
}

/// Return the mount that a path with no symbolic links in it is on.
///
/// Walks as the kernel does, from the root mount into the mounts that stand on it, so that a mount hidden under
/// another is not found. Where the table has no root (a changed root folder), the longest mount point wins, and
/// of equals the last.
pub fn find<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let root = mounts.iter().find(|mount| {
        mount.mount_point == Path::new("/") && !mounts.iter().any(|other| other.id == mount.parent && other != *mount)
    });
    let Some(mut current) = root else {
        return mounts
            .iter()
            .filter(|mount| path.starts_with(&mount.mount_point))
            .max_by_key(|mount| mount.mount_point.components().count());
    };
    // Each step goes to a child, so a table that is a tree ends it; the bound is for one that is not.
    for _ in 0..mounts.len() {
        let next = mounts
            .iter()
            .rev()
            .filter(|mount| mount.parent == current.id && mount.id != current.id)
            .filter(|mount| path.starts_with(&mount.mount_point))
            .min_by_key(|mount| mount.mount_point.components().count());
        match next {
            Some(child) => current = child,
            None => break,
        }
    }
    Some(current)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(table: &str, path: &str) -> (String, PathBuf) {
        let mounts = parse(table.as_bytes());
        let mount = find(&mounts, Path::new(path)).unwrap();
        (mount.fs_type.clone(), mount.mount_point.clone())
    }

    #[test]
    fn optional_fields_and_missing_options_are_understood() {
        let mounts = parse(
            b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 propagate_from:2 - ext3 /dev/root rw,errors=continue\n\
              37 35 0:5 / /x rw - none tmpfs\nnot a line\n\n38 35 x / /y rw - a b c\n",
        );
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].fs_type, "ext3");
        assert_eq!(mounts[0].major, 98);
        assert_eq!(mounts[0].root, Path::new("/mnt1"));
        assert_eq!(mounts[0].option("errors").as_deref(), Some("continue"));
        assert_eq!(mounts[1].super_options, "");
    }

    #[test]
    fn escaped_spaces_and_backslashes_are_undone() {
        let mounts = parse(br"9 1 0:5 / /my\040home/a\134b\011c rw - fuse.sshfs me@host:/a\040b rw");
        assert_eq!(mounts[0].mount_point, Path::new("/my home/a\\b\tc"));
        assert_eq!(mounts[0].source, "me@host:/a b");
    }

    #[test]
    fn a_comma_in_a_folder_of_an_overlay_is_part_of_its_name() {
        let mounts = parse(br"9 1 0:5 / /m rw - overlay overlay rw,upperdir=/a\134,b,workdir=/w");
        assert_eq!(mounts[0].option("upperdir").as_deref(), Some("/a,b"));
        assert_eq!(mounts[0].option("workdir").as_deref(), Some("/w"));
        assert_eq!(mounts[0].option("upper"), None);
    }

    #[test]
    fn the_longest_mount_point_wins_by_whole_names() {
        let table = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:2 / /home rw - xfs /dev/sda2 rw\n\
                     3 2 0:9 / /home/me rw - nfs4 fs:/me rw\n";
        assert_eq!(on(table, "/home/me/app.db").0, "nfs4");
        assert_eq!(on(table, "/home/me").0, "nfs4");
        assert_eq!(on(table, "/home/meister/app.db").0, "xfs");
        assert_eq!(on(table, "/srv").0, "ext4");
    }

    #[test]
    fn of_mounts_stacked_on_one_point_the_upper_counts_in_any_order_of_lines() {
        let autofs = "2 1 0:30 / /home/me rw - autofs auto.home rw,fd=5\n";
        let nfs = "3 2 0:40 / /home/me rw - nfs4 fs:/me rw\n";
        let root = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n";
        assert_eq!(on(&format!("{root}{autofs}{nfs}"), "/home/me/x").0, "nfs4");
        assert_eq!(on(&format!("{nfs}{autofs}{root}"), "/home/me/x").0, "nfs4");
    }

    #[test]
    fn a_mount_hidden_under_another_is_not_found() {
        // /a/b was mounted first, then /a was covered: what is seen at /a/b is a folder of the cover.
        let table = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / /a/b rw - nfs4 fs:/b rw\n\
                     3 1 0:8 / /a rw - tmpfs tmpfs rw\n";
        assert_eq!(on(table, "/a/b/app.db").0, "tmpfs");
    }

    #[test]
    fn a_table_without_a_root_falls_back_to_the_longest_mount_point() {
        let table = "7 3 0:9 / /data rw - ext4 /dev/sdb rw\n8 3 0:9 / /data/nfs rw - nfs fs:/ rw\n\
                     9 3 0:9 / /data/nfs rw - cifs //fs/x rw\n";
        assert_eq!(on(table, "/data/nfs/app.db").0, "cifs");
        assert!(find(&parse(table.as_bytes()), Path::new("/other")).is_none());
    }

    #[test]
    fn a_table_that_is_not_a_tree_ends() {
        let table = "1 2 8:1 / / rw - ext4 a rw\n2 1 8:1 / / rw - xfs b rw\n3 3 8:1 / / rw - jfs c rw\n";
        assert!(find(&parse(table.as_bytes()), Path::new("/x")).is_some());
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let line = br"36 35 98:0 /m\0401 /mnt2 rw,noatime master:1 - overlay /dev/root rw,upperdir=/a\,b";
        for _ in 0..20_000 {
            let mut bytes = line.to_vec();
            for _ in 0..3 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (seed >> 33) as usize % bytes.len();
                bytes[at] = (seed >> 20) as u8;
            }
            for mount in parse(&bytes) {
                mount.option("upperdir");
            }
        }
    }
}
