//! Views by the real binary: named, asked, read as jobs, dropped; embedded and through a server.

use serde_json::Value;

use crate::support::{Home, csv_pipeline};

const EVEN: &str = "SELECT n, _id FROM numbers WHERE n % 2 = 0 AND n < 500";

fn numbers() -> Home {
    let home = Home::new();
    let rows: String = (0..1000).map(|n| format!("{n}\n")).collect();
    home.write("data/a.csv", format!("n\n{rows}"));
    home.write("p.toml", csv_pipeline("numbers", "SELECT n, n * n AS square FROM input", "").replace("count = 1", "count = 2"));
    home.ok(&["materialize", "p.toml"]);
    home
}

fn json(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn a_view_is_named_asked_read_and_dropped() {
    let home = numbers();
    let made = json(&home.ok(&["view", "create", "even", EVEN, "--json"]));
    assert_eq!((&made["kind"], &made["dataset"]), (&Value::from("selection"), &Value::from("numbers")), "{made}");
    assert_eq!((made["cost"]["rows"].as_u64(), made["cost"]["selected"].as_u64()), (Some(2000), Some(500)), "{made}");
    assert_eq!(made["share"].as_f64(), Some(0.25), "{made}");
    // Every embedded command is a process of its own: the view is in the root.
    let listed = json(&home.ok(&["view", "list", "--json"]));
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(listed[0]["cost"], made["cost"], "{listed}");
    let shown = home.ok(&["view", "show", "even"]);
    assert!(shown.contains("500 of 2,000 (25.00%)") && shown.contains("forebay read even"), "{shown}");
    assert_eq!(home.number("SELECT count(*) AS n FROM even"), 500);
    assert_eq!(home.number("SELECT selected AS n FROM system.views WHERE name = 'even' AND kind = 'selection'"), 500);

    // A job of the view is the job of its dataset with its filter and columns.
    let digest = |args: &[&str]| {
        let more = ["--batch-size", "16", "--seed", "5", "--digest", "--json"];
        json(home.ok(&[args, &more].concat()).lines().last().unwrap_or_default())["digest"].as_str().unwrap().to_owned()
    };
    let plain = digest(&["read", "numbers", "--filter", "n % 2 = 0 AND n < 500"]);
    assert_eq!(digest(&["read", "even"]), plain);
    assert_eq!(digest(&["read", "even", "--consumers", "3", "--assignment", "rounds", "--visitation", "at_least_once"]).len(), 16);
    let narrowed = digest(&["read", "even", "--filter", "n > 100 -- more", "--columns", "n"]);
    assert_eq!(narrowed, digest(&["read", "numbers", "--filter", "n % 2 = 0 AND n < 500 AND n > 100"]));
    let plan = json(&home.ok(&["plan", "even", "--batch-size", "16", "--step", "3", "--json"]));
    assert_eq!((plan["rows"].as_u64(), plan["dataset"].as_str()), (Some(250), Some("numbers")), "{plan}");
    assert!(home.fails(2, &["read", "even", "--columns", "square"]).contains("the view has no column `square`"));

    assert!(home.ok(&["view", "drop", "even"]).contains("dropped"));
    assert!(home.fails(2, &["read", "even"]).contains("no dataset `even`"));
    assert!(home.fails(2, &["view", "drop", "even"]).contains("no view `even`"));
}

#[test]
fn a_job_goes_on_with_the_view_that_it_began_with() {
    let home = numbers();
    home.ok(&["view", "create", "few", "SELECT n FROM numbers WHERE n < 100"]);
    let read = |job: &str| json(home.ok(&["read", "few", "--job", job, "--epochs", "2", "--json"]).lines().last().unwrap_or_default());
    assert_eq!(read("first")["rows"].as_u64(), Some(200));
    home.ok(&["view", "drop", "few"]);
    // The job is finished, and its name still stands for what the view was.
    assert!(home.fails(2, &["read", "few", "--job", "first", "--epochs", "2"]).contains("finished"));
    let plan = json(&home.ok(&["plan", "few", "--job", "first", "--json"]));
    assert_eq!(plan["rows"].as_u64(), Some(100), "{plan}");
    home.ok(&["view", "create", "few", "SELECT n FROM numbers WHERE n < 10"]);
    assert!(home.fails(2, &["read", "few", "--job", "first", "--epochs", "2"]).contains("finished"));
    assert_eq!(read("second")["rows"].as_u64(), Some(20));
    // Begun anew, it is what the view is now.
    let again = home.ok(&["read", "few", "--job", "first", "--epochs", "2", "--restart", "--json"]);
    assert_eq!(json(again.lines().last().unwrap_or_default())["rows"].as_u64(), Some(20));
}

#[test]
fn names_are_given_once_and_what_is_missing_is_said() {
    let home = numbers();
    home.ok(&["view", "create", "even", EVEN]);
    assert!(home.fails(2, &["view", "create", "even", "SELECT 1 AS one"]).contains("forebay view drop even"));
    assert!(home.fails(2, &["view", "create", "numbers", EVEN]).contains("there is a dataset"));
    assert!(home.fails(2, &["view", "create", "Even", EVEN]).contains("not a view name"));
    assert!(home.fails(2, &["view", "create", "odd", "SELECT m FROM numbers"]).contains("No field named m"));
    home.write("q.toml", csv_pipeline("even", "SELECT n FROM input", ""));
    let said = home.fails(2, &["materialize", "q.toml"]);
    assert!(said.contains("there is a view `even`") && said.contains("forebay view drop even"), "{said}");
    assert!(home.fails(2, &["datasets", "show", "even"]).contains("it is a view"));

    home.ok(&["view", "create", "counts", "SELECT n % 10 AS digit, count(*) AS c FROM even GROUP BY 1"]);
    let shown = home.ok(&["view", "show", "counts"]);
    assert!(shown.contains("5 of 2,000 scanned") && shown.contains("GROUP BY"), "{shown}");
    let said = home.fails(2, &["read", "counts"]);
    assert!(said.contains("can't be read as a job") && said.contains("[source] sql"), "{said}");
    assert_eq!(home.number("SELECT sum(c) AS n FROM counts"), 500);

    let said = home.ok(&["datasets", "drop", "numbers"]);
    assert!(said.contains("view even answers nothing"), "{said}");
    let listed = home.ok(&["view"]);
    assert!(listed.contains("broken"), "{listed}");
    assert!(home.fails(2, &["sql", "SELECT * FROM even"]).contains("no dataset `numbers`"));
    assert!(home.fails(2, &["read", "even"]).contains("no dataset `numbers`"));
    home.ok(&["materialize", "p.toml"]);
    assert_eq!(home.number("SELECT count(*) AS n FROM even"), 500);
}

#[test]
fn a_server_makes_views_for_its_clients() {
    let home = numbers();
    let mut server = home.serve(&[]);
    let at = ["--server", &server.address];
    let run = |args: &[&str]| {
        let mut command = home.command(&[args, &at].concat());
        command.env_remove("FOREBAY_ROOT").output().unwrap()
    };
    let even = run(&["view", "create", "even", EVEN]);
    assert!(even.status.success(), "{even:?}");
    // A root with a live owner is used through it.
    assert_eq!(home.number("SELECT count(*) AS n FROM even"), 500);
    let read = run(&["read", "even", "--epochs", "1", "--json"]);
    assert!(read.status.success(), "{read:?}");
    assert_eq!(json(std::str::from_utf8(&read.stdout).unwrap())["rows"].as_u64(), Some(250));
    server.end();
    let _server = home.serve(&[]);
    assert_eq!(json(&home.ok(&["view", "show", "even", "--json"]))["cost"]["selected"].as_u64(), Some(500));
}
