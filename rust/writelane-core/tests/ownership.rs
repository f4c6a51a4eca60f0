//! One owner among real processes: this test starts itself anew as another process.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use writelane_core::filesystem;
use writelane_core::ownership::{self, Ownership, OwnershipError, Scope, Terms};
use writelane_core::wait::Patience;

const PATIENCE: Patience<'static> = Patience { until: None, interrupted: &|| false };

fn scope(name: &str) -> Scope {
    if name == "hosts" { Scope::Hosts(Terms::DEFAULT) } else { Scope::Host }
}

/// The other process: owns the database until it is killed.
#[test]
fn role_of_the_other_process() {
    let Ok(database) = std::env::var("WL_TEST_OWN") else { return };
    let owned = Ownership::acquire(Path::new(&database), scope(&std::env::var("WL_TEST_SCOPE").unwrap()), &PATIENCE);
    println!("\nrole: {}", if owned.is_ok() { "owned" } else { "refused" });
    if owned.is_ok() {
        loop {
            std::thread::park();
        }
    }
}

fn start(database: &Path, scope: &str) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["role_of_the_other_process", "--exact", "--nocapture"])
        .env("WL_TEST_OWN", database)
        .env("WL_TEST_SCOPE", scope)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let answer = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("role: ").map(str::to_owned));
    (child, answer.unwrap())
}

fn a_killed_owner_is_followed_at_once(name: &str) {
    let folder = std::env::temp_dir().join(format!("wl-own-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let database = folder.join("app.db");

    let (mut other, answer) = start(&database, name);
    assert_eq!(answer, "owned");
    let Err(OwnershipError::Held { owner: Some(owner), .. }) = Ownership::acquire(&database, scope(name), &PATIENCE)
    else {
        panic!("a live owner was torn down");
    };
    assert_eq!(owner.identity.pid, other.id());
    let seen = ownership::look(&database).unwrap().unwrap();
    assert!(seen.certain && seen.owner.unwrap().is(&owner));

    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(ownership::look(&database).unwrap(), None);
    let owned = Ownership::acquire(&database, scope(name), &PATIENCE).unwrap();
    owned.still_mine().unwrap();

    let (mut other, answer) = start(&database, name);
    assert_eq!(answer, "refused");
    other.wait().unwrap();
    owned.still_mine().unwrap();
    drop(owned);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_killed_owner_is_followed_at_once_by_the_kernels_word() {
    a_killed_owner_is_followed_at_once("host");
}

#[test]
fn a_killed_owner_of_this_host_is_followed_at_once_also_where_a_lease_decides() {
    a_killed_owner_is_followed_at_once("hosts");
}

#[test]
fn the_scope_follows_from_the_filesystem() {
    let table = filesystem::parse(b"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / /home rw - nfs4 fs:/ rw\n");
    let on = |folder: &str| {
        Scope::on(&filesystem::judge_in(&table, Path::new(folder), &|path| Some(path.to_owned())).unwrap())
    };
    assert_eq!(on("/srv"), Scope::Host);
    assert_eq!(on("/home/me"), Scope::Hosts(Terms::DEFAULT));
}
