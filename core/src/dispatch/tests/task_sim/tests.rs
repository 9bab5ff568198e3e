//! The seeds that run with every test run, and the planted bugs.

use super::*;

const SEEDS: u64 = 300;
/// Within so many seeds a planted bug must show.
const BUG_SEEDS: u64 = 300;

/// Runs one seed to its end and judges it.
fn judge(seed: u64, bug: Option<Bug>) -> Result<Sim, String> {
    let run = std::panic::catch_unwind(|| {
        let mut sim = Sim::new(seed, bug);
        let ends = sim.run();
        if setting("FOREBAY_SIM_LOG").is_some() {
            sim.journal.entries.iter().for_each(|bytes| println!("{}", String::from_utf8_lossy(bytes)));
            println!("{:#?}\n{:?}", sim.store.log, sim.faults);
        }
        if !ends {
            let state = sim.fold();
            let run = state.datasets.values().next().and_then(|d| d.run.as_ref()).map(|r| (&r.phase, &r.epochs));
            return Err(format!("nothing ends: {run:?}, workers {:?}", sim.workers.iter().filter(|w| w.alive).collect::<Vec<_>>()));
        }
        sim.check_fold();
        sim.verdict()?;
        Ok(sim)
    });
    run.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(text.unwrap_or_default())
    })
}

#[allow(clippy::disallowed_methods)]
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|s| s.parse().ok())
}

#[test]
fn every_promise_about_tasks_is_kept() {
    let seeds = match setting("FOREBAY_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("FOREBAY_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let whole = seeds.clone().count() as u64 >= SEEDS;
    let (mut faults, mut failures) = (BTreeMap::<&str, u32>::new(), Vec::new());
    for seed in seeds {
        if seed > 0 && seed.is_multiple_of(1_000) {
            eprintln!("{seed} histories of runs, {} broke a promise", failures.len());
        }
        match judge(seed, None) {
            Ok(sim) => sim.faults.iter().for_each(|(what, n)| *faults.entry(what).or_default() += n),
            Err(why) => failures.push(format!(
                "seed {seed}: {why}\n  FOREBAY_SIM_SEED={seed} cargo test -p forebay-core task_sim::tests::every_promise -- --nocapture"
            )),
        }
    }
    assert!(failures.is_empty(), "{} histories broke a promise:\n{}", failures.len(), failures.join("\n"));
    println!("{faults:?}");
    if whole {
        assert!(faults.len() == 16 && faults.values().all(|n| *n >= 20), "the histories are too tame: {faults:?}");
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in [3, 4, 5] {
        let run = || {
            let mut sim = Sim::new(seed, None);
            sim.run();
            (sim.journal.entries, sim.store.log)
        };
        assert_eq!(run(), run());
    }
}

#[test]
fn planted_bugs_are_caught() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let (mut report, mut missed) = (Vec::new(), Vec::new());
    for bug in Bug::ALL {
        match (0..BUG_SEEDS).find_map(|seed| judge(seed, Some(bug)).err().map(|why| (seed, why))) {
            Some((seed, why)) => report.push(format!("{bug:?}: seed {seed}: {}", why.chars().take(110).collect::<String>())),
            None => missed.push(bug),
        }
    }
    std::panic::set_hook(hook);
    println!("{}", report.join("\n"));
    assert!(missed.is_empty(), "the checker does not see {missed:?}");
}
