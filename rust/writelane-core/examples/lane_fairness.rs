//! Measures turn-taking: processes in a tight loop on one file, one insert a transaction, through the lane and with
//! SQLite's own busy timeout, in one run.
//!
//! `cargo run --release --example lane_fairness [-- seconds [processes [rounds]]]`; with `mix` first, half of the
//! processes are plain Python `sqlite3` writers beside ours. Prints commits a second, fewest over most, worst wait.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use writelane_core::lane::Lane;
use writelane_core::sqlite::{Handle, OpenFlags, SqliteError, ffi};
use writelane_core::wait::Patience;

const PLAIN_PYTHON: &str = "
import sqlite3, sys, time
path, level, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
db = sqlite3.connect(path, timeout=5.0, isolation_level=None)
db.execute('PRAGMA synchronous=' + level)
sys.stdin.read(1)
end = time.monotonic() + seconds
n, worst, errors = 0, 0.0, 0
while (t := time.monotonic()) < end:
    try:
        db.execute('INSERT INTO t(x) VALUES (?)', ('x' * 100,))
        n += 1
    except sqlite3.OperationalError:
        errors += 1
    worst = max(worst, time.monotonic() - t)
print(n, worst, errors)
";

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "worker") {
        return worker(&args[1], Path::new(&args[2]), &args[3], args[4].parse()?);
    }
    let mix = args.first().is_some_and(|arg| arg == "mix");
    let number = |at: usize, default: f64| args.get(at + usize::from(mix)).map_or(Ok(default), |arg| arg.parse());
    let (seconds, processes, rounds) = (number(0, 4.0)?, number(1, 8.0)? as usize, number(2, 3.0)? as usize);
    let folder = std::env::temp_dir().join(format!("lane-fairness-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    for level in ["full", "normal"] {
        let mut table: Vec<(&str, Vec<[f64; 5]>)> = Vec::new();
        for round in 0..rounds {
            let sets: &[(&str, &str)] =
                if mix { &[("plain", "python"), ("lane", "python")] } else { &[("plain", "plain"), ("lane", "lane")] };
            for (first, second) in sets {
                let path = folder.join(format!("{level}-{round}-{first}.db"));
                for (group, figures) in measure(&path, level, seconds, processes, [first, second])? {
                    let name: &str = match (mix, group) {
                        (false, _) => first,
                        (true, 0) => first,
                        (true, _) => {
                            if *first == "lane" {
                                "python beside lane"
                            } else {
                                "python beside plain"
                            }
                        }
                    };
                    match table.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, all)) => all.push(figures),
                        None => table.push((name, vec![figures])),
                    }
                }
            }
        }
        println!("{level}: {processes} processes, medians of {rounds} x {seconds} s");
        println!(
            "{:22} {:>10} {:>12} {:>14} {:>8} {:>9}",
            "", "commits/s", "fewest/most", "worst wait ms", "errors", "log MB"
        );
        for (name, all) in table {
            let median = |at: usize| {
                let mut column: Vec<f64> = all.iter().map(|row| row[at]).collect();
                column.sort_by(f64::total_cmp);
                column[column.len() / 2]
            };
            println!(
                "{name:22} {:>10.0} {:>12.3} {:>14.1} {:>8} {:>9.1}",
                median(0),
                median(1),
                median(2),
                median(3),
                median(4)
            );
        }
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Run one set of processes; return for each group commits a second, fewest over most, worst wait, errors, log size.
fn measure(
    path: &Path,
    level: &str,
    seconds: f64,
    processes: usize,
    kinds: [&str; 2],
) -> Result<Vec<(usize, [f64; 5])>, Failure> {
    let db = Handle::open(path, OpenFlags::WRITER)?;
    db.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(id INTEGER PRIMARY KEY, x TEXT)")?;
    let mut children: Vec<(usize, Child)> = Vec::new();
    for n in 0..processes {
        let group = usize::from(kinds[0] != kinds[1] && n % 2 == 1);
        children.push((group, spawn(kinds[group], path, level, seconds)?));
    }
    // All are up and wait for their line.
    std::thread::sleep(Duration::from_millis(400));
    for (_, child) in &mut children {
        drop(child.stdin.take());
    }
    let mut groups: Vec<(usize, Vec<[f64; 3]>)> = Vec::new();
    for (group, child) in children {
        let output = child.wait_with_output()?;
        let text = String::from_utf8(output.stdout)?;
        let row: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let row: [f64; 3] = row.try_into().map_err(|_| format!("a process said {text:?}"))?;
        match groups.iter_mut().find(|(known, _)| *known == group) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((group, vec![row])),
        }
    }
    let mut wal: PathBuf = path.to_owned();
    wal.as_mut_os_string().push("-wal");
    let log = std::fs::metadata(wal).map_or(0, |meta| meta.len()) as f64 / 1e6;
    Ok(groups
        .into_iter()
        .map(|(group, rows)| {
            let fewest = rows.iter().map(|row| row[0]).fold(f64::INFINITY, f64::min);
            let most = rows.iter().map(|row| row[0]).fold(0.0, f64::max);
            let worst = rows.iter().map(|row| row[1]).fold(0.0, f64::max);
            let commits: f64 = rows.iter().map(|row| row[0]).sum();
            let errors: f64 = rows.iter().map(|row| row[2]).sum();
            (group, [commits / seconds, fewest / most, worst * 1000.0, errors, log])
        })
        .collect())
}

fn spawn(kind: &str, path: &Path, level: &str, seconds: f64) -> Result<Child, Failure> {
    let mut command = if kind == "python" {
        let mut command = Command::new("python3");
        command.args(["-c", PLAIN_PYTHON]);
        command
    } else {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", kind]);
        command
    };
    command.arg(path).args([level, &seconds.to_string()]);
    Ok(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
}

fn worker(kind: &str, path: &Path, level: &str, seconds: f64) -> Result<(), Failure> {
    let db = Handle::open(path, OpenFlags::EXISTING)?;
    db.execute_batch(&format!("PRAGMA synchronous={level}"))?;
    db.busy_timeout_ms(if kind == "plain" { 5000 } else { 0 });
    let lane = Lane::of(path);
    std::io::Read::read(&mut std::io::stdin(), &mut [0])?;
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let (mut commits, mut worst, mut errors) = (0_u64, Duration::ZERO, 0_u64);
    while Instant::now() < end {
        let begun = Instant::now();
        let result = if kind == "plain" { db.execute_batch(INSERT) } else { in_lane(&lane, &db) };
        worst = worst.max(begun.elapsed());
        match result {
            Ok(()) => commits += 1,
            Err(_) => errors += 1,
        }
    }
    println!("{commits} {} {errors}", worst.as_secs_f64());
    if std::env::var_os("LANE_STATS").is_some() {
        eprintln!("{:?}", lane.stats());
    }
    Ok(())
}

const INSERT: &str = "INSERT INTO t(x) VALUES (printf('%.100c', 'x'))";

fn in_lane(lane: &std::sync::Arc<Lane>, db: &Handle) -> Result<(), SqliteError> {
    let patience = Patience { until: None, interrupted: &|| false };
    let busy = || SqliteError::from_code(ffi::SQLITE_BUSY);
    let mut turn = lane.enter(INSERT, &patience).map_err(|_| busy())?;
    loop {
        match db.execute_batch(INSERT) {
            Err(error) if error.primary() == ffi::SQLITE_BUSY => {
                turn.wait_for_write_lock(&patience).map_err(|_| busy())?;
            }
            other => return other,
        }
    }
}
