//! Measures what a turn costs that nobody else is there for: entering and leaving the lane, without SQLite.
//!
//! `cargo run --release --example lane_cost`

use std::time::Instant;
use writelane_core::lane::Lane;
use writelane_core::wait::Patience;

const TURNS: u32 = 200_000;

fn main() -> std::io::Result<()> {
    let path = std::env::temp_dir().join(format!("lane-cost-{}.db", std::process::id()));
    std::fs::write(&path, "")?;
    let lane = Lane::of(&path);
    let patience = Patience { until: None, interrupted: &|| false };
    let mut rounds: Vec<u128> = (0..5)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..TURNS {
                drop(lane.enter("INSERT INTO t(x) VALUES (?)", &patience));
            }
            begun.elapsed().as_nanos() / u128::from(TURNS)
        })
        .collect();
    rounds.sort_unstable();
    println!("a turn: {} ns (median of 5); {:?}", rounds[2], lane.stats());
    std::fs::remove_file(writelane_core::holder::beside(&path, "-lane"))?;
    std::fs::remove_file(&path)
}
