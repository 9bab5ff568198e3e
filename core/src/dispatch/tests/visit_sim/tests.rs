//! The seeds that run with every test run, and the planted bugs.

use super::bugs::Bug;
use super::*;

const SEEDS: u64 = 300;
/// Within so many seeds a planted bug must show.
const BUG_SEEDS: usize = 150;

/// Runs one seed to its end and judges it.
fn judge(seed: u64, bug: Option<Bug>) -> Result<Sim, String> {
    judge_of(bug, || Sim::new(seed, bug))
}

fn judge_of(bug: Option<Bug>, make: impl Fn() -> Sim + std::panic::RefUnwindSafe) -> Result<Sim, String> {
    let run = std::panic::catch_unwind(|| {
        let mut sim = make();
        let ends = sim.run();
        if !ends {
            if setting("FOREBAY_SIM_LOG").is_some() {
                sim.print_history();
            }
            return Err(format!("nothing ends: {}", sim.where_it_stands()));
        }
        if setting("FOREBAY_SIM_LOG").is_some() {
            sim.print_history();
        }
        if bug.is_none() {
            sim.check_fold();
        }
        sim.verdict().map_err(|why| format!("{why}; settings {:?}", sim.settings))?;
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

fn again(seed: u64) -> String {
    format!("FOREBAY_SIM_SEED={seed} cargo test -p forebay-core visit_sim::tests::every_promise -- --nocapture")
}

#[test]
fn every_promise_is_kept() {
    let seeds = match setting("FOREBAY_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("FOREBAY_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let whole = seeds.clone().count() as u64 >= SEEDS;
    let (mut faults, mut restores, mut twice, mut yields, mut modes, mut failures) = (0, 0, 0, 0, BTreeMap::new(), Vec::new());
    for seed in seeds {
        if seed > 0 && seed.is_multiple_of(1_000) {
            eprintln!("{seed} histories of jobs, {} broke a promise", failures.len());
        }
        match judge(seed, None) {
            Ok(sim) => {
                faults += sim.faults;
                restores += sim.restores;
                twice += u32::from(sim.restores > 1);
                yields += sim.seen.iter().filter(|s| matches!(s, Seen::Yield { .. })).count();
                *modes
                    .entry(format!("{:?} {:?} {:?}", sim.settings.visitation, sim.settings.assignment, sim.settings.steps))
                    .or_insert(0) += 1;
            }
            Err(why) => failures.push(format!("seed {seed}: {why}\n  {}", again(seed))),
        }
    }
    assert!(failures.is_empty(), "{} histories broke a promise:\n{}", failures.len(), failures.join("\n"));
    println!("{faults} faults, {restores} restores ({twice} histories with several), {yields} deliveries, {modes:?}");
    if whole {
        assert!(
            faults > 5_000 && restores > 100 && twice > 30 && modes.len() == 18,
            "the histories are too tame: {faults} faults, {restores} restores, {modes:?}"
        );
    }
}

#[test]
fn every_promise_is_kept_while_the_epochs_are_written() {
    let seeds = match setting("FOREBAY_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("FOREBAY_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let whole = seeds.clone().count() as u64 >= SEEDS;
    let (mut grown, mut early, mut given_up, mut finished, mut modes, mut failures) = (0, 0, 0, 0, BTreeMap::new(), Vec::new());
    for seed in seeds {
        match judge_of(None, || Sim::staged(seed)) {
            Ok(sim) => {
                let changes: Vec<Change> = sim.journal.entries.iter().map(|e| Entry::decode(e).unwrap().change).collect();
                let published = changes.iter().position(|c| matches!(c, Change::Published { .. })).unwrap_or(changes.len());
                early += changes[..published].iter().filter(|c| matches!(c, Change::Acknowledged { .. })).count();
                grown += changes.iter().filter(|c| matches!(c, Change::PassGrown { .. })).count();
                given_up += u32::from(sim.is_given_up());
                finished += u32::from(changes.iter().any(|c| matches!(c, Change::JobEnded { end: JobEnd::Finished, .. })));
                *modes
                    .entry(format!("{:?} {:?} {:?}", sim.settings.visitation, sim.settings.assignment, sim.settings.steps))
                    .or_insert(0) += 1;
            }
            Err(why) => failures.push(format!("seed {seed}: {why}\n  {}", again(seed))),
        }
    }
    assert!(failures.is_empty(), "{} histories broke a promise:\n{}", failures.len(), failures.join("\n"));
    println!(
        "{grown} growths, {early} acknowledgements before the first publication, {given_up} runs given up, {finished} jobs finished, {modes:?}"
    );
    if whole {
        assert!(
            grown > 600 && early > 900 && given_up > 20 && finished > 200 && modes.len() == 15,
            "the histories are too tame: {grown} growths, {early} early, {given_up} given up, {finished} finished, {modes:?}"
        );
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in [3, 4, 5] {
        let run = || {
            let mut sim = Sim::new(seed, None);
            sim.run();
            sim.journal.entries
        };
        assert_eq!(run(), run());
    }
}

#[test]
fn planted_bugs_are_caught() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut report = Vec::new();
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let mut seeds = (0..).filter(|seed| bug.may_show(&Sim::new(*seed, None).settings)).take(BUG_SEEDS);
        match seeds.find_map(|seed| judge(seed, Some(bug)).err().map(|why| (seed, why))) {
            Some((seed, why)) => report.push(format!("{bug:?}: seed {seed}: {}", why.chars().take(110).collect::<String>())),
            None => missed.push(bug),
        }
    }
    std::panic::set_hook(hook);
    println!("{}", report.join("\n"));
    assert!(missed.is_empty(), "the checker does not see {missed:?}");
}
