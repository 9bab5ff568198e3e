//! A disk that is full and one that can't be written, as real file systems: a tmpfs in a mount namespace of the test's own.

use std::process::Command;

use crate::support::{Home, binary, csv_pipeline, text};

/// Runs a shell script where `$disk` is a fresh file system of `size` that only the script sees; gives its exit status, stdout and stderr.
/// None where the kernel allows no such namespace, which the test's output then says.
fn on_disk(home: &Home, size: &str, script: &str) -> Option<(i32, String, String)> {
    let probe = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]).output();
    if !probe.is_ok_and(|out| out.status.success()) {
        eprintln!("skipped: no mount namespace can be made here");
        return None;
    }
    let disk = home.path("disk");
    std::fs::create_dir_all(&disk).unwrap();
    let whole = format!("set -e; mount -t tmpfs -o size={size} tmpfs \"$disk\"; {script}");
    let out = Command::new("unshare")
        .args(["-rm", "sh", "-c", &whole])
        .current_dir(home.dir.path())
        .env("disk", &disk)
        .env("forebay", binary())
        .env("FOREBAY_ROOT", disk.join("root"))
        .env_remove("FOREBAY_SERVER")
        .env_remove("FOREBAY_TOKEN")
        .output()
        .unwrap();
    Some((out.status.code().unwrap_or(-1), text(&out.stdout), text(&out.stderr)))
}

/// Rows that do not compress: 2 MiB of text.
fn noise(home: &Home) {
    let mut state = 1_u64;
    let mut line = |n: usize| {
        let word = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            format!("{state:016x}")
        };
        format!("{n},{}\n", (0..16).map(word).collect::<String>())
    };
    let rows: String = (0..8_000).map(&mut line).collect();
    home.write("data/a.csv", format!("n,noise\n{rows}"));
    home.write("p.toml", csv_pipeline("noise", "SELECT n, noise FROM input", "[output]\nshard_size = \"256KiB\"\n"));
}

#[test]
fn a_full_disk_fails_the_run_by_name_and_leaves_no_half_epoch() {
    let home = Home::new();
    noise(&home);
    let script = r#"
        dd if=/dev/zero of="$disk/filler" bs=1M count=15 status=none
        if "$forebay" materialize p.toml; then exit 90; fi
        echo "-- after" >&2
        rm "$disk/filler"
        "$forebay" sql "SELECT count(*) AS n FROM system.datasets" --format json
        "$forebay" materialize p.toml --resume >/dev/null
        "$forebay" sql "SELECT count(*) AS n, count(DISTINCT n) AS d FROM noise" --format json
    "#;
    let Some((status, said, failed)) = on_disk(&home, "16m", script) else { return };
    assert_eq!(status, 0, "{said}\n{failed}");
    assert!(failed.contains("disk full"), "{failed}");
    assert_eq!(said.lines().collect::<Vec<_>>(), ["{\"n\":0}", "{\"n\":8000,\"d\":8000}"], "{failed}");
}

#[test]
fn a_read_only_root_answers_queries_and_refuses_runs() {
    let home = Home::new();
    noise(&home);
    let script = r#"
        "$forebay" materialize p.toml >/dev/null
        mount -o remount,ro "$disk"
        "$forebay" sql "SELECT count(*) AS n FROM noise" --format json
        "$forebay" datasets >/dev/null
        sed -i 's/SELECT n, noise/SELECT n/' p.toml
        if "$forebay" materialize p.toml --replace; then exit 90; fi
        "$forebay" sql "SELECT count(noise) AS n FROM noise" --format json
    "#;
    let Some((status, said, failed)) = on_disk(&home, "64m", script) else { return };
    assert_eq!(status, 0, "{said}\n{failed}");
    assert!(failed.to_lowercase().contains("read-only"), "{failed}");
    assert_eq!(said.lines().collect::<Vec<_>>(), ["{\"n\":8000}", "{\"n\":8000}"], "{failed}");
}
