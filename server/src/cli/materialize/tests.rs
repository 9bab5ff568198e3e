#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

fn progress(state: &str) -> MaterializeProgress {
    MaterializeProgress {
        dataset: "digits".to_owned(),
        state: state.to_owned(),
        epochs: vec![0, 1, 2],
        published: vec![],
        tasks: 9,
        tasks_done: 4,
        rows: 5391,
        source_bytes: 100,
        source_bytes_done: 50,
        bytes: 3 << 20,
        quarantined: 0,
        version: Some(2),
        error: None,
    }
}

fn wanted(wait: bool) -> MaterializeRequest {
    serde_json::from_value(json!({ "pipeline": "", "wait": wait })).unwrap()
}

#[test]
fn results_are_one_sentence() {
    let took = Duration::from_millis(1500);
    assert_eq!(
        sentence(&progress("done"), took, &wanted(true)),
        "digits: epochs 0..3 materialized, version 2: 5,391 rows, 3.0 MiB in 1.5 s"
    );
    assert_eq!(sentence(&progress("already_materialized"), took, &wanted(true)), "digits: epochs 0..3 already materialized, nothing read");
    assert_eq!(sentence(&progress("running"), took, &wanted(false)), "digits: epochs 0..3 accepted; follow with `forebay tasks`");
    let mut bad = progress("done");
    bad.quarantined = 1200;
    assert!(sentence(&bad, took, &wanted(true)).ends_with("in 1.5 s, 1,200 rows in quarantine"));
}

#[test]
fn a_request_takes_the_file_its_folder_and_its_modules() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("p.toml");
    std::fs::write(&file, "name = \"d\"\n[source]\nuri = \"a.csv\"\n[[steps]]\nname = \"s\"\npython = \"m:f\"\n").unwrap();
    std::fs::write(folder.path().join("m.py"), "def f(batch): return batch\n").unwrap();
    let mut args = MaterializeArgs {
        pipeline: file.clone(),
        epochs: Some((0, 2)),
        set: vec!["epochs.count=2".to_owned()],
        wait: false,
        detach: false,
        resume: true,
        replace: false,
    };
    let request = request(&args).unwrap();
    assert_eq!(request.base, folder.path().canonicalize().unwrap().to_str().unwrap());
    assert_eq!((request.epochs, request.resume, request.wait), (Some((0, 2)), true, true));
    assert_eq!(request.modules["m"], "def f(batch): return batch\n");
    args.set = vec!["epochs.cuont=2".to_owned()];
    let error = super::request(&args).unwrap_err().to_string();
    assert!(error.contains("p.toml: epochs.cuont: unknown key; did you mean `count`?"), "{error}");
    args.pipeline = folder.path().join("none.toml");
    assert_eq!(super::request(&args).unwrap_err().kind, Kind::NotFound);
}

#[test]
fn what_goes_on_is_the_same_command_without_its_secret() {
    let args =
        ["materialize", "my digits.toml", "--root", "./data", "--token", "s3cret", "--set", "epochs.count=2", "--token=s3cret", "--detach"];
    let command = resume_of(args.into_iter().map(str::to_owned));
    assert_eq!(command, "forebay materialize 'my digits.toml' --root ./data --set epochs.count=2 --resume");
    assert_eq!(
        resume_of(["materialize", "it's.toml", "--resume"].into_iter().map(str::to_owned)),
        r"forebay materialize 'it'\''s.toml' --resume"
    );
}
