#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;

use super::*;
use crate::error::Kind;

/// The whole JSON of the documentation, but for the settings that this version lacks.
const DOCUMENTED: &str = r#"{"job":"run1","dataset":"digits","version":null,"epochs":3,"batch_size":64,"seed":7,"shuffle":null,"order":"published",
"window":"256MiB","assignment":"dynamic","visitation":"at_most_once","world_size":null,"steps":null,"end":null,"bucket_by":null,"round_size":null,
"columns":null,"filter":null,"rank_lost":"wait","rank_timeout":"60s","idle_timeout":"10m","restart":false,"consumer":"host-0","rank":null,"acks":null}"#;

fn message(json: &str) -> String {
    JobRequest::from_json(json).unwrap_err().to_string()
}

fn resolve(json: &str) -> Result<(JobSettings, ConsumerSettings), crate::Error> {
    JobRequest::from_json(json).unwrap().resolve(Shuffle::Window)
}

#[test]
fn the_documented_json_resolves_to_the_defaults() {
    let (settings, consumer) = resolve(DOCUMENTED).unwrap();
    let mut expected = JobSettings::new(JobName("run1".into()), DatasetName("digits".into()));
    expected.epochs = Passes::Count(3);
    expected.batch_size = 64;
    expected.seed = 7;
    assert_eq!(settings, expected);
    assert_eq!((settings.window, settings.idle_timeout_ms, settings.rank_timeout_ms), (268_435_456, 600_000, 60_000));
    assert_eq!(consumer, ConsumerSettings { consumer: ConsumerName("host-0".into()), rank: None, acks_by_action: false, restart: false });
}

#[test]
fn the_dataset_gives_the_default_shuffle() {
    let request = JobRequest::from_json(r#"{"job":"a","dataset":"d","consumer":"c"}"#).unwrap();
    assert_eq!(request.resolve(Shuffle::None).unwrap().0.shuffle, Shuffle::None);
    assert_eq!(request.resolve(Shuffle::RowGroups).unwrap().0.shuffle, Shuffle::RowGroups);
}

#[test]
fn all_problems_come_at_once_and_name_the_nearest_key() {
    assert_eq!(
        message(r#"{"datasett":"digits","bacth_size":64,"seed":-1,"shuffle":"windows","window":"lots","epochs":[1,1]}"#),
        "job: dataset: missing; name the dataset to read\n\
         job: epochs: pass 1 is named twice; give a number of passes, a list of pass numbers, \"forever\", or null for all stored epochs\n\
         job: seed: expected a whole number of at least 0, found -1\n\
         job: shuffle: unknown value `windows`; did you mean `window`? known are `none`, `row_groups`, `window` and `full`\n\
         job: window: `lots` is not a size; write a number and a unit, such as \"128MiB\"; units are B, KB, MB, GB, TB, KiB, MiB, GiB and TiB\n\
         job: datasett: unknown key; did you mean `dataset`?\n\
         job: bacth_size: unknown key; did you mean `batch_size`?"
    );
    assert_eq!(message("[]"), "job: expected a JSON object, found a list of 0; send an object with a `dataset`");
    assert!(message("{").starts_with("job: not JSON: "));
}

#[test]
fn a_job_and_a_consumer_need_names() {
    let error = resolve(r#"{"dataset":"d"}"#).unwrap_err();
    assert_eq!(
        error.to_string(),
        "job: job: missing; name the job that the consumers share\njob: consumer: missing; give each consumer of the job a name of its own"
    );
    let (_, consumer) = resolve(r#"{"job":"j","dataset":"d","rank":1,"world_size":2,"steps":"any"}"#).unwrap();
    assert_eq!(consumer.consumer.as_str(), "rank-1");
}

#[test]
fn a_world_above_one_asks_for_equal_steps() {
    let (settings, _) = resolve(r#"{"job":"j","dataset":"d","rank":0,"world_size":2}"#).unwrap();
    assert_eq!((settings.steps, settings.end), (Steps::Equal, End::Drop));
    let (settings, _) = resolve(r#"{"job":"j","dataset":"d","rank":0,"world_size":1}"#).unwrap();
    assert_eq!((settings.steps, settings.end), (Steps::Any, End::Short));
}

#[test]
fn every_visitation_and_assignment_resolves() {
    for visitation in ["at_most_once", "at_least_once", "exactly_once"] {
        for assignment in ["dynamic", "static", "rounds"] {
            for end in ["drop", "pad"] {
                let json = format!(
                    r#"{{"job":"j","dataset":"d","rank":0,"world_size":2,"assignment":"{assignment}","visitation":"{visitation}","end":"{end}","kept_commits":5}}"#
                );
                assert_eq!(resolve(&json).unwrap().0.kept_commits, 5);
            }
        }
    }
}

#[test]
fn what_this_version_lacks_is_refused_in_one_message() {
    let full = resolve(r#"{"job":"j","dataset":"d","consumer":"c","shuffle":"full"}"#).unwrap_err();
    assert_eq!(full.kind, Kind::Unsupported);
}

#[test]
fn settings_that_contradict_each_other_are_bad_input() {
    let cases = [
        (r#""assignment":"static""#, "world_size: missing, and `assignment` is static"),
        (r#""assignment":"static","world_size":2"#, "rank: missing"),
        (r#""rank":2,"world_size":2,"steps":"any""#, "rank: 2 is outside of 0..2"),
        (r#""rank":0"#, "world_size: missing beside `rank`"),
        (r#""steps":"equal""#, "world_size: missing, and `steps` is equal"),
        (r#""steps":"equal","world_size":2,"end":"short""#, "end: a short last batch gives unequal steps"),
        (r#""order":"staged","filter":"label = 1""#, "filter: `order` staged"),
        (r#""order":"staged","shuffle":"full""#, "shuffle: a full shuffle needs the whole epoch"),
        (r#""order":"staged","rank":0,"world_size":2"#, "steps: equal steps of a staged epoch need a fixed map"),
        (r#""round_size":4"#, "round_size: it belongs to `bucket_by`"),
        (r#""columns":[]"#, "columns: an empty list"),
        (r#""columns":["a","b","a"]"#, "columns: `a` is named twice"),
        (r#""filter":" ""#, "filter: empty"),
        (r#""rank_lost":"drop","visitation":"exactly_once""#, "rank_lost: \"drop\" loses batches"),
    ];
    for (extra, expected) in cases {
        let error = resolve(&format!(r#"{{"job":"j","dataset":"d","consumer":"c",{extra}}}"#)).unwrap_err();
        assert_eq!(error.kind, Kind::BadInput, "{extra}: {error}");
        assert!(error.to_string().contains(expected), "{extra}: {error}");
    }
}

#[test]
fn names_are_checked() {
    assert!(message(r#"{"dataset":"d","job":"../x"}"#).contains("is not a job name"));
    assert!(message(r#"{"dataset":"d","consumer":""}"#).contains("is not a consumer's name"));
    assert!(resolve(r#"{"job":"j","dataset":"No","consumer":"c"}"#).unwrap_err().to_string().contains("is not a dataset name"));
}

#[test]
fn a_difference_is_shown_key_by_key() {
    let here = JobSettings::new(JobName("j".into()), DatasetName("d".into()));
    let mut there = here.clone();
    assert!(here.refuse_difference(&there).is_ok());
    there.batch_size = 64;
    there.columns = Some(vec!["image".into()]);
    there.idle_timeout_ms = 1500;
    assert_eq!(here.difference(&there), ["batch_size: 256 -> 64", "columns: null -> [\"image\"]", "idle_timeout: \"600s\" -> \"1500ms\""]);
    let error = here.refuse_difference(&there).unwrap_err();
    assert_eq!(error.kind, Kind::FailedPrecondition);
}

#[test]
fn passes_are_numbered() {
    assert_eq!(Passes::All.numbers(2), Some(vec![0, 1]));
    assert_eq!(Passes::Count(3).numbers(2), Some(vec![0, 1, 2]));
    assert_eq!(Passes::List(vec![4, 2]).numbers(2), Some(vec![4, 2]));
    assert_eq!(Passes::Forever.numbers(2), None);
    assert_eq!(Passes::List(vec![4, 2]).nth(1, 2), Some(2));
    assert_eq!(Passes::List(vec![4, 2]).nth(2, 2), None);
    assert_eq!(Passes::All.nth(2, 2), None);
    assert_eq!(Passes::Forever.nth(u32::MAX, 2), Some(u32::MAX));
}

#[test]
fn old_settings_without_the_newer_keys_still_read() {
    let mut value = serde_json::to_value(JobSettings::new(JobName("j".into()), DatasetName("d".into()))).unwrap();
    let map = value.as_object_mut().unwrap();
    map.remove("rank_lost");
    map.remove("rank_timeout_ms");
    let read: JobSettings = serde_json::from_value(value).unwrap();
    assert_eq!(read, JobSettings::new(JobName("j".into()), DatasetName("d".into())));
}

fn passes() -> impl Strategy<Value = Passes> {
    prop_oneof![
        Just(Passes::All),
        Just(Passes::Forever),
        (1u32..).prop_map(Passes::Count),
        prop::collection::btree_set(any::<u32>(), 1..6).prop_map(|set| Passes::List(set.into_iter().rev().collect())),
    ]
}

proptest! {
    #[test]
    fn passes_round_trip(passes in passes()) {
        let text = serde_json::to_string(&passes).unwrap();
        prop_assert_eq!(serde_json::from_str::<Passes>(&text).unwrap(), passes.clone());
        prop_assert_eq!(Passes::from_value(&serde_json::from_str(&text).unwrap()).unwrap(), passes);
    }

    /// What a client writes from the typed request, the server's strict reader takes as the same request.
    #[test]
    fn requests_round_trip(passes in passes(), batch in prop::option::of(1u64..1 << 31), seed in any::<Option<u64>>(),
                           window in prop::option::of(1u64..1 << 40), rank in any::<Option<u32>>(), columns in prop::option::of(prop::collection::vec("[a-z]{1,5}", 0..4))) {
        let request = JobRequest { dataset: "digits".into(), epochs: passes, batch_size: batch, seed, window, rank, columns,
            shuffle: Some(Shuffle::RowGroups), idle_timeout: Some("5m".into()), acks: Some(Acks::Action), ..JobRequest::default() };
        prop_assert_eq!(JobRequest::from_json(&serde_json::to_string(&request).unwrap()).unwrap(), request);
    }

    /// No text makes the reader panic.
    #[test]
    fn any_text_is_refused_or_read(text in ".{0,200}") {
        let _ = JobRequest::from_json(&text);
    }
}
