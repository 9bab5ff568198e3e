use super::*;

#[test]
fn a_window_is_shared_when_another_job_reads_it() {
    let kept = Kept::default();
    assert!(!kept.note(1, 10), "the first reader is alone");
    assert!(!kept.note(1, 10), "and stays so when it reads again");
    assert!(!kept.note(2, 11));
    assert!(kept.note(1, 11), "another job");
    assert!(!kept.note(1, 10), "the first job gathers for itself: nobody may follow it");
    for window in 3..=REMEMBERED as u64 + 2 {
        kept.note(window, 10);
    }
    assert!(!kept.note(1, 11), "forgotten");
}
