use super::*;

/// Mount tables as machines of each kind have them.
const WORKSTATION: &str = r"
22 28 0:20 / /sys rw,nosuid - sysfs sysfs rw
28 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
40 28 0:35 / /tmp rw,nosuid,nodev - tmpfs tmpfs rw,size=8G
51 28 0:44 / /home rw,relatime shared:20 - autofs auto.home rw,fd=6,pgrp=1,timeout=300,indirect
52 51 0:50 / /home/ada rw,relatime shared:21 - nfs4 filer.example:/export/home/ada rw,vers=4.2,proto=tcp
60 28 0:51 / /mnt/share rw,relatime - cifs //filer/share rw,vers=3.1.1
61 28 0:52 / /mnt/ssh\040home rw,nosuid - fuse.sshfs ada@far.example:/srv rw,user_id=1000
62 28 0:53 / /pool rw,relatime - fuse.mergerfs /mnt/d1:/mnt/d2 rw,allow_other
63 28 8:17 / /media/stick rw - fuseblk /dev/sdb1 rw,blksize=4096
64 28 0:54 / /mnt/bucket rw - fuse.s3fs s3fs rw
65 28 0:55 / /mnt/brick rw - fuse.glusterfs gl1:/vol rw
66 28 0:56 / /mnt/new rw - fuse.neverheardof thing rw
67 28 0:57 / /mnt/bare rw - fuse /dev/fuse rw
70 28 0:50 /project /srv/project rw,relatime - nfs4 filer.example:/export/home/ada rw
71 28 259:2 /var/data /srv/data rw,relatime - ext4 /dev/nvme0n1p2 rw
80 28 0:60 / /mnt/secret rw - fuse.gocryptfs /home/ada/cipher rw
81 28 0:61 / /mnt/bound rw - fuse.bindfs /var/lib/data rw
90 28 0:62 / /mnt/guest rw - virtiofs share rw
91 28 0:63 / /mnt/nine rw - 9p host rw,trans=virtio
92 28 8:33 / /mnt/odd rw - oddfs /dev/sdc1 rw
93 28 0:64 / /mnt/odder rw - odderfs thing rw
";

const CONTAINER: &str = r"
700 600 0:99 / / rw,relatime - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/A:/var/lib/docker/overlay2/l/B,upperdir=/var/lib/docker/overlay2/x/diff,workdir=/var/lib/docker/overlay2/x/work
701 700 0:50 /vol /data rw,relatime - nfs4 filer:/vol rw
702 700 259:2 /var/lib/docker/volumes/v/_data /local rw - ext4 /dev/nvme0n1p2 rw
703 700 0:70 / /over rw - overlay overlay rw,lowerdir=/image,upperdir=/data/up,workdir=/data/work
704 700 0:71 / /readonly ro - overlay overlay ro,lowerdir=/data/a:/local/b
705 700 0:72 / /overover rw - overlay overlay rw,lowerdir=/image,upperdir=/over/up,workdir=/over/work
706 700 0:73 / /fine rw - overlay overlay rw,lowerdir=/data/low,upperdir=/local/up,workdir=/local/work
";

fn verdict(table: &str, folder: &str) -> Verdict {
    judgement(table, folder).verdict
}

/// Judges with every path visible but the host's own folders of the container's root.
fn judgement(table: &str, folder: &str) -> Judgement {
    let table = parse(table.as_bytes());
    let resolve = |path: &Path| (!path.starts_with("/var/lib/docker")).then(|| path.to_owned());
    judge_in(&table, Path::new(folder), &resolve).unwrap()
}

#[test]
fn each_kind_of_mount_of_a_workstation_is_judged_right() {
    use Verdict::{Local, LocalWithWarning, Network, Unknown};
    for (folder, expected) in [
        ("/", Local),
        ("/tmp/x", Local),
        ("/home", Unknown),
        ("/home/ada/app", Network),
        ("/mnt/share", Network),
        ("/mnt/ssh home/x", Network),
        ("/pool/x", LocalWithWarning),
        ("/media/stick", LocalWithWarning),
        ("/mnt/bucket", Network),
        ("/mnt/brick", Network),
        ("/mnt/new", Unknown),
        ("/mnt/bare", Unknown),
        ("/srv/project/x", Network),
        ("/srv/data/x", Local),
        ("/mnt/bound", LocalWithWarning),
        ("/mnt/guest", Network),
        ("/mnt/nine", Network),
        ("/mnt/odd", LocalWithWarning),
        ("/mnt/odder", Unknown),
        ("/mnt/sharedelse", Local),
    ] {
        assert_eq!(verdict(WORKSTATION, folder), expected, "{folder}");
    }
}

#[test]
fn an_encrypted_folder_kept_on_a_network_home_is_refused_for_what_it_stands_on() {
    let found = judgement(WORKSTATION, "/mnt/secret");
    assert_eq!(found.verdict, Verdict::Network);
    assert_eq!(found.fs_type, "fuse.gocryptfs");
    assert!(found.reason.contains("/home/ada/cipher") && found.reason.contains("nfs4"), "{}", found.reason);
}

#[test]
fn an_overlay_is_followed_to_what_its_writes_land_on() {
    for (folder, expected) in [
        ("/srv", Verdict::Local),
        ("/data/x", Verdict::Network),
        ("/local/x", Verdict::Local),
        ("/over/x", Verdict::Network),
        ("/overover/x", Verdict::Network),
        ("/readonly/x", Verdict::Network),
        ("/fine/x", Verdict::Local),
    ] {
        assert_eq!(verdict(CONTAINER, folder), expected, "{folder}");
    }
}

#[test]
fn overlays_in_a_circle_end() {
    let table = "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:5 / /a rw - overlay o rw,upperdir=/b/u\n\
                 3 1 0:6 / /b rw - overlay o rw,upperdir=/a/u\n";
    assert_eq!(verdict(table, "/a/x"), Verdict::Local);
}

#[test]
fn a_refusal_names_mount_type_reason_and_the_three_ways_out() {
    let text = judgement(WORKSTATION, "/home/ada/app").refusal(Path::new("/home/ada/app/app.db"));
    for part in [
        "/home/ada/app/app.db",
        "mount /home/ada ",
        "nfs4",
        "filer.example",
        "local disk",
        "delete",
        "WRITELANE_JOURNAL",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn only_a_doubtful_local_mount_warns() {
    let database = Path::new("x.db");
    assert!(judgement(WORKSTATION, "/pool").warning(database).unwrap().contains("fuse.mergerfs"));
    assert_eq!(judgement(WORKSTATION, "/tmp").warning(database), None);
    assert_eq!(judgement(WORKSTATION, "/mnt/share").warning(database), None);
}

#[test]
fn the_number_answers_where_the_mount_table_cannot() {
    let folder = Path::new("/x");
    assert_eq!(judge_magic(folder, 0x6969).verdict, Verdict::Network);
    assert_eq!(judge_magic(folder, 0xef53).verdict, Verdict::Local);
    assert_eq!(judge_magic(folder, kinds::FUSE_MAGIC).verdict, Verdict::Unknown);
    assert_eq!(judge_magic(folder, 0x1234_5678).verdict, Verdict::Unknown);
}

#[test]
fn this_machines_temporary_folder_is_judged_without_creating_anything() {
    let folder = std::env::temp_dir().join(format!("wl-judge-{}", std::process::id()));
    let missing = folder.join("a/b/app.db");
    let found = judge(&missing).unwrap();
    assert!(!folder.exists());
    assert_eq!(found.folder, fs::canonicalize(std::env::temp_dir()).unwrap());
    assert!(found.mount_point.is_some_and(|mount_point| found.folder.starts_with(mount_point)));
}

#[test]
fn links_are_followed_also_when_they_lead_nowhere() {
    let folder = std::env::temp_dir().join(format!("wl-links-{}", std::process::id()));
    fs::create_dir_all(folder.join("real")).unwrap();
    std::os::unix::fs::symlink("real/missing.db", folder.join("link.db")).unwrap();
    std::os::unix::fs::symlink("/proc/missing.db", folder.join("far.db")).unwrap();
    std::os::unix::fs::symlink("circle.db", folder.join("circle.db")).unwrap();
    assert_eq!(judge(&folder.join("link.db")).unwrap().folder, fs::canonicalize(folder.join("real")).unwrap());
    assert_eq!(judge(&folder.join("far.db")).unwrap().folder, Path::new("/proc"));
    assert!(judge(&folder.join("circle.db")).is_err());
    fs::remove_dir_all(&folder).unwrap();
}
