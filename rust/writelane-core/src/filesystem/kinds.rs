//! Which filesystem types can be trusted with a database: tables.
//!
//! A write-ahead log needs the memory of the `-shm` file shared between all who use the database, and any
//! journal mode needs locks that all of them see. Sources: <https://www.sqlite.org/wal.html> (point 2 of the
//! disadvantages), `linux/magic.h`, statfs(2), and the documentation of the filesystems.

/// What a filesystem type means for a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One kernel, one page cache.
    Local,
    /// A FUSE filesystem that serves a disk of this machine.
    LocalFuse,
    /// Shared with other machines through a server or a common store.
    Network,
    /// One disk, many machines.
    Cluster,
    /// Shared between a guest and its host.
    Guest,
    /// Mounts something else when it is used.
    Automount,
    /// Shows the files of other filesystems.
    Stacked,
}

use Kind::{Automount, Cluster, Guest, Local, LocalFuse, Network, Stacked};

/// Return what a type in the mount table means; `None` for one that the tables do not have.
pub fn by_type(fs_type: &str) -> Option<Kind> {
    let fs_type = fs_type.to_ascii_lowercase();
    match fs_type.split_once('.') {
        Some(("fuse" | "fuseblk" | "fusectl" | "virtiofs", subtype)) => by_fuse_subtype(subtype),
        // A FUSE with a block device behind it is local whatever it calls itself.
        None if fs_type == "fuseblk" => Some(LocalFuse),
        None | Some(_) => TYPES.iter().find(|(names, _)| names.contains(&&*fs_type)).map(|(_, kind)| *kind),
    }
}

fn by_fuse_subtype(subtype: &str) -> Option<Kind> {
    FUSE_SUBTYPES.iter().find(|(names, _)| names.contains(&subtype)).map(|(_, kind)| *kind)
}

/// Return the name and the meaning of a `statfs` magic number; `None` for one that the table does not have.
pub fn by_magic(magic: u32) -> Option<(&'static str, Kind)> {
    MAGICS.iter().find(|(number, ..)| *number == magic).map(|(_, name, kind)| (*name, *kind))
}

/// The magic number of every FUSE filesystem, which says nothing about what it serves.
pub const FUSE_MAGIC: u32 = 0x6573_5546;

const TYPES: &[(&[&str], Kind)] = &[
    (
        &[
            "apfs", "bcachefs", "bfs", "btrfs", "devtmpfs", "efs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs",
            "hfs", "hfsplus", "iso9660", "jffs2", "jfs", "minix", "msdos", "nilfs2", "ntfs", "ntfs3", "omfs", "ramfs",
            "reiser4", "reiserfs", "rootfs", "squashfs", "sysv", "tmpfs", "ubifs", "udf", "ufs", "vfat", "xfs",
            "xiafs", "zfs", "zonefs",
        ],
        Local,
    ),
    (&["overlay", "overlayfs", "aufs", "ecryptfs", "shiftfs", "unionfs", "wrapfs"], Stacked),
    (
        &[
            "afs",
            "auristorfs",
            "beegfs",
            "ceph",
            "cifs",
            "coda",
            "davfs",
            "davfs2",
            "fhgfs",
            "glusterfs",
            "gpfs",
            "ibrix",
            "kafs",
            "lustre",
            "lustre_lite",
            "mmfs",
            "ncp",
            "ncpfs",
            "nfs",
            "nfs3",
            "nfs4",
            "nfsd",
            "orangefs",
            "panfs",
            "pvfs2",
            "quobyte",
            "smb",
            "smb2",
            "smb3",
            "smbfs",
            "wekafs",
            "xtreemfs",
        ],
        Network,
    ),
    (&["acfs", "cvfs", "cxfs", "gfs", "gfs2", "lustre_tgt", "ocfs2", "snfs", "stornext", "vxfs", "vxodmfs"], Cluster),
    (
        &["9p", "drvfs", "hostfs", "hgfs", "prl_fs", "prl_fs_freeze", "v9fs", "vboxsf", "virtiofs", "vmhgfs", "wslfs"],
        Guest,
    ),
    (&["autofs"], Automount),
];

const FUSE_SUBTYPES: &[(&[&str], Kind)] = &[
    (
        &[
            "apfs",
            "apfs-fuse",
            "bindfs",
            "blk",
            "cryfs",
            "dislocker",
            "e2fs",
            "encfs",
            "exfat",
            "exfat-fuse",
            "ext2",
            "ext4",
            "fuse-ext2",
            "fuse-overlayfs",
            "fuse2fs",
            "gocryptfs",
            "hfsfuse",
            "lxcfs",
            "mergerfs",
            "mhddfs",
            "ntfs",
            "ntfs-3g",
            "passthrough",
            "passthrough_hp",
            "passthrough_ll",
            "securefs",
            "squashfuse",
            "squashfuse_ll",
            "unionfs",
            "unionfs-fuse",
            "vdfuse",
            "veracrypt",
            "truecrypt",
            "zfs-fuse",
        ],
        LocalFuse,
    ),
    (
        &[
            "acd_cli",
            "afpfs",
            "alluxio",
            "alluxio-fuse",
            "beegfs",
            "blobfuse",
            "blobfuse2",
            "ceph",
            "ceph-fuse",
            "cosfs",
            "curlftpfs",
            "cvmfs",
            "cvmfs2",
            "davfs",
            "davfs2",
            "dbxfs",
            "dropbox",
            "gcsfuse",
            "geesefs",
            "gluster",
            "glusterfs",
            "goofys",
            "google-drive-ocamlfuse",
            "gpfs",
            "gvfs-fuse-daemon",
            "gvfsd-fuse",
            "hdfs",
            "fuse_dfs",
            "httpfs",
            "httpfs2",
            "ipfs",
            "jfs",
            "juicefs",
            "kbfuse",
            "keybase",
            "lizardfs",
            "lustre",
            "mfs",
            "mfsmount",
            "moosefs",
            "mount-s3",
            "mountpoint-s3",
            "nfs",
            "objectivefs",
            "obsfs",
            "onedriver",
            "orangefs",
            "ossfs",
            "pvfs2",
            "pvfs2fuse",
            "quobyte",
            "rclone",
            "rclonefs",
            "riofs",
            "s3",
            "s3backer",
            "s3fs",
            "s3ql",
            "saunafs",
            "seaweedfs",
            "smbnetfs",
            "sshfs",
            "svfs",
            "tigrisfs",
            "wdfs",
            "weed",
            "wekafs",
            "xtreemfs",
            "yas3fs",
        ],
        Network,
    ),
    (&["grpcfuse", "osxfs", "prl_fsd", "vmhgfs", "vmhgfs-fuse", "virtiofs"], Guest),
];

const MAGICS: &[(u32, &str, Kind)] = &[
    (0x0000_6969, "nfs", Network),
    (0x6e66_7364, "nfsd", Network),
    (0x0000_517b, "smb", Network),
    (0xff53_4d42, "cifs", Network),
    (0xfe53_4d42, "smb3", Network),
    (0x00c3_6400, "ceph", Network),
    (0x0bd0_0bd0, "lustre", Network),
    (0x4750_4653, "gpfs", Network),
    (0x5346_414f, "afs", Network),
    (0x6b41_4653, "kafs", Network),
    (0x1983_0326, "beegfs", Network),
    (0xaad7_aaea, "panfs", Network),
    (0x0131_11a8, "ibrix", Network),
    (0x7375_7245, "coda", Network),
    (0x0000_564c, "ncp", Network),
    (0x2003_0528, "orangefs", Network),
    (0x7461_636f, "ocfs2", Cluster),
    (0x0116_1970, "gfs2", Cluster),
    (0xbeef_dead, "snfs", Cluster),
    (0x6163_6673, "acfs", Cluster),
    (0xa501_fcf5, "vxfs", Cluster),
    (0x0102_1997, "9p", Guest),
    (0x786f_4256, "vboxsf", Guest),
    (0xbacb_acbc, "vmhgfs", Guest),
    (0x7c7c_6673, "prl_fs", Guest),
    (0x00c0_ffee, "hostfs", Guest),
    (0x0000_0187, "autofs", Automount),
    (0x794c_7630, "overlay", Stacked),
    (0x6175_6673, "aufs", Stacked),
    (0x0000_f15f, "ecryptfs", Stacked),
    (0x0000_ef53, "ext4", Local),
    (0x5846_5342, "xfs", Local),
    (0x9123_683e, "btrfs", Local),
    (0xca45_1a4e, "bcachefs", Local),
    (0xf2f5_2010, "f2fs", Local),
    (0x2fc1_2fc1, "zfs", Local),
    (0x0102_1994, "tmpfs", Local),
    (0x8584_58f6, "ramfs", Local),
    (0x3153_464a, "jfs", Local),
    (0x5265_4973, "reiserfs", Local),
    (0x0000_3434, "nilfs2", Local),
    (0x0000_4d44, "vfat", Local),
    (0x2011_bab0, "exfat", Local),
    (0x5346_544e, "ntfs", Local),
    (0x7366_746e, "ntfs3", Local),
    (0x0000_4244, "hfs", Local),
    (0x0000_482b, "hfsplus", Local),
    (0x1501_3346, "udf", Local),
    (0x2405_1905, "ubifs", Local),
    (0x0000_72b6, "jffs2", Local),
    (0xe0f5_e1e2, "erofs", Local),
    (0x7371_7368, "squashfs", Local),
    (0x0000_9660, "iso9660", Local),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_name_and_no_number_stands_in_two_places() {
        for table in [TYPES, FUSE_SUBTYPES] {
            let mut seen = HashSet::new();
            for (names, _) in table {
                for name in *names {
                    assert!(seen.insert(name), "{name} is listed twice");
                    assert_eq!(*name, name.to_ascii_lowercase(), "types are compared in lower case");
                }
            }
        }
        let mut seen = HashSet::new();
        for (magic, name, _) in MAGICS {
            assert!(seen.insert(magic), "{name}");
        }
    }

    #[test]
    fn a_magic_number_and_the_type_it_names_agree() {
        for (magic, name, kind) in MAGICS {
            assert_eq!(by_type(name), Some(*kind), "{name} ({magic:#x})");
        }
    }

    #[test]
    fn a_subtype_is_looked_up_apart_from_kernel_types() {
        assert_eq!(by_type("fuse.sshfs"), Some(Kind::Network));
        assert_eq!(by_type("fuse.SSHFS"), Some(Kind::Network));
        assert_eq!(by_type("fuseblk.ntfs-3g"), Some(Kind::LocalFuse));
        assert_eq!(by_type("fuseblk"), Some(Kind::LocalFuse));
        assert_eq!(by_type("fuse.mergerfs"), Some(Kind::LocalFuse));
        assert_eq!(by_type("fuse.neverheardof"), None);
        assert_eq!(by_type("fuse"), None);
        assert_eq!(by_type("ext4"), Some(Kind::Local));
        // A network filesystem's name as a kernel type does not make a FUSE of that name one, nor the reverse.
        assert_eq!(by_type("sshfs"), None);
    }
}
