#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use clap::Parser;
use forebay_core::job::Passes;
use forebay_core::pipeline::Shuffle;

use super::*;

#[derive(Debug, Parser)]
struct Shell {
    #[command(flatten)]
    args: ReadArgs,
}

fn asked(words: &[&str]) -> Result<JobRequest> {
    request(&Shell::try_parse_from(std::iter::once("read").chain(words.iter().copied())).unwrap().args)
}

#[test]
fn flags_become_a_job() {
    let job = asked(&[
        "digits",
        "--job",
        "run1",
        "--epochs",
        "0..2",
        "--batch-size",
        "64",
        "--columns",
        "image,label",
        "--window",
        "1MiB",
        "--shuffle",
        "none",
    ])
    .unwrap();
    assert_eq!(job.job.as_deref(), Some("run1"));
    assert_eq!(job.epochs, Passes::List(vec![0, 1]));
    assert_eq!((job.batch_size, job.window, job.shuffle), (Some(64), Some(1 << 20), Some(Shuffle::None)));
    assert_eq!(job.columns.unwrap(), ["image", "label"]);
    assert!(asked(&["digits"]).unwrap().job.unwrap().starts_with("read-"));
}

#[test]
fn wrong_settings_are_refused_as_flags_without_a_server() {
    assert_eq!(
        asked(&["digits", "--batch-size", "0"]).unwrap_err().to_string(),
        "--batch-size: expected a whole number in 1..=2147483648, found 0"
    );
    let error = asked(&["digits", "--visitation", "exactly_once"]).unwrap_err();
    assert_eq!(error.kind, Kind::Unsupported);
    assert_eq!(
        error.to_string(),
        "--visitation exactly_once is relative to checkpoints, and `read` makes none; use at_least_once here; trainers read exactly once \
         with the Python loader's `commit` and `load_state_dict`"
    );
    assert!(asked(&["digits", "--epochs", "1,1"]).unwrap_err().to_string().contains("pass 1 is named twice"));
    assert!(asked(&["No"]).unwrap_err().to_string().contains("is not a dataset name"));
}

#[test]
fn consumers_merge_into_one_account_and_one_digest() {
    let ms = Duration::from_millis;
    let part = |from: u64, to: u64, taken: Vec<(u32, u64, u64)>| Read {
        passes: BTreeMap::from([(0, Pass { epoch: 2, batches: taken.len() as u64, rows: 10, bytes: 100, from: ms(from), to: ms(to) })]),
        taken,
        consumers: 1,
        ..Read::default()
    };
    let mut all = part(10, 50, vec![(0, 1, 7), (0, 3, 9)]);
    all.merge(part(5, 40, vec![(0, 0, 1), (0, 2, 2)]));
    let pass = &all.passes[&0];
    assert_eq!((pass.batches, pass.rows, pass.bytes, pass.from, pass.to), (4, 20, 200, ms(5), ms(50)));
    let whole = part(0, 0, vec![(0, 0, 1), (0, 1, 7), (0, 2, 2), (0, 3, 9)]);
    assert_eq!(all.digest(), whole.digest());
    assert_ne!(all.digest(), part(0, 0, vec![(0, 0, 1)]).digest());
    let json = all.json(&JobRequest { job: Some("j".into()), dataset: "d".into(), ..JobRequest::default() });
    assert_eq!((json["rows"].as_u64(), json["consumers"].as_u64(), json["passes"][0]["epoch"].as_u64()), (Some(20), Some(2), Some(2)));
}
