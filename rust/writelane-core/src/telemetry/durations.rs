//! A histogram of durations in bounded memory.

use std::time::Duration;

/// Buckets of one block. Each block covers one doubling, so a bucket's middle is at most 1/128 away from what is in it.
const BLOCK: usize = 64;
/// The bits of [`BLOCK`].
const BLOCK_BITS: u32 = BLOCK.trailing_zeros();
/// Blocks: the last one ends at 2^53 ns, 104 days. Longer durations are counted in its last bucket.
const BLOCKS: usize = 48;

/// A histogram of durations: counts, their sum and the longest.
///
/// A quantile errs by at most 1 %. Blocks are made when a duration first falls into them: at most 12 kB, and some 2 kB
/// for durations that lie within a factor of a hundred. A count stops at 2^32.
#[derive(Clone, Default)]
pub struct Durations {
    blocks: Vec<Option<Box<[u32; BLOCK]>>>,
    count: u64,
    sum: Duration,
    max: Duration,
}

impl Durations {
    /// Count one duration.
    #[inline]
    pub fn record(&mut self, duration: Duration) {
        let (block, bucket) = place(nanoseconds(duration));
        if self.blocks.len() <= block {
            self.blocks.resize_with(block + 1, || None);
        }
        let counts = self.blocks[block].get_or_insert_with(|| Box::new([0; BLOCK]));
        counts[bucket] = counts[bucket].saturating_add(1);
        self.count += 1;
        self.sum = self.sum.saturating_add(duration);
        self.max = self.max.max(duration);
    }

    /// Return each bucket that is not empty: the middle of it, and how many durations are in it.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u32)> + '_ {
        self.blocks.iter().enumerate().flat_map(|(block, counts)| {
            counts.iter().flat_map(move |counts| {
                counts
                    .iter()
                    .enumerate()
                    .filter(|(_, count)| **count > 0)
                    .map(move |(bucket, count)| (middle(block, bucket), *count))
            })
        })
    }

    /// Return how many durations are at least this long, give or take those of one bucket.
    pub fn at_least(&self, least: Duration) -> u64 {
        self.buckets().filter(|(middle, _)| *middle >= least).map(|(_, count)| u64::from(count)).sum()
    }

    /// Return the numbers that are shown.
    pub fn stats(&self) -> PhaseStats {
        let mut stats = PhaseStats { count: self.count, sum: self.sum, max: self.max, ..PhaseStats::default() };
        let rank = |q: f64| ((self.count as f64 * q).ceil() as u64).max(1);
        let ranks = [rank(0.50), rank(0.90), rank(0.99), rank(0.999)];
        let mut quantiles = [Duration::ZERO; 4];
        let (mut seen, mut next) = (0, 0);
        for (middle, count) in self.buckets() {
            seen += u64::from(count);
            while next < ranks.len() && ranks[next] <= seen {
                quantiles[next] = middle.min(self.max);
                next += 1;
            }
        }
        [stats.p50, stats.p90, stats.p99, stats.p999] = quantiles;
        stats
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Return the block and the bucket of a value. The first two blocks are exact.
#[inline]
fn place(value: u64) -> (usize, usize) {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(BLOCK_BITS + 1);
    let scaled = (value >> shift) as usize;
    let block = shift as usize + (scaled >> BLOCK_BITS);
    if block < BLOCKS { (block, scaled & (BLOCK - 1)) } else { (BLOCKS - 1, BLOCK - 1) }
}

fn middle(block: usize, bucket: usize) -> Duration {
    if block == 0 {
        return Duration::from_nanos(bucket as u64);
    }
    let shift = block - 1;
    let width = 1_u64 << shift;
    Duration::from_nanos((((BLOCK + bucket) as u64) << shift) + width / 2)
}

/// The buckets of a histogram that are not empty: the middle of each, and how many durations are in it.
pub type Distribution = Vec<(Duration, u32)>;

/// One phase of one statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseStats {
    /// Jobs counted.
    pub count: u64,
    /// The sum over them.
    pub sum: Duration,
    /// The longest.
    pub max: Duration,
    /// Quantiles, with an error of at most 1 %.
    pub p50: Duration,
    /// See `p50`.
    pub p90: Duration,
    /// See `p50`.
    pub p99: Duration,
    /// See `p50`.
    pub p999: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_err_by_at_most_one_percent() {
        let mut durations = Durations::default();
        for microseconds in 1..=10_000_u64 {
            durations.record(Duration::from_micros(microseconds));
        }
        let stats = durations.stats();
        for (got, want) in [(stats.p50, 5_000.0), (stats.p90, 9_000.0), (stats.p99, 9_900.0), (stats.p999, 9_990.0)] {
            let got = got.as_secs_f64() * 1e6;
            assert!((got - want).abs() <= want * 0.01, "{got} for {want}");
        }
        assert_eq!(stats.max, Duration::from_millis(10));
        assert_eq!(stats.sum, Duration::from_micros(10_000 * 10_001 / 2));
        assert_eq!(stats.count, 10_000);
    }

    #[test]
    fn every_value_lies_within_one_percent_of_its_bucket() {
        let mut value = 1_u64;
        while value < 1 << 53 {
            for value in [value - 1, value, value + value / 3, value + value / 2] {
                let (block, bucket) = place(value);
                let middle = middle(block, bucket).as_nanos() as f64;
                assert!((middle - value as f64).abs() <= value as f64 * 0.01, "{middle} for {value}");
            }
            value *= 2;
        }
    }

    #[test]
    fn an_extreme_duration_is_counted_not_lost() {
        let mut durations = Durations::default();
        durations.record(Duration::MAX / 4);
        durations.record(Duration::ZERO);
        assert_eq!(durations.stats().count, 2);
        assert_eq!(durations.buckets().map(|(_, count)| count).sum::<u32>(), 2);
        assert_eq!(Durations::default().stats(), PhaseStats::default());
    }
}
